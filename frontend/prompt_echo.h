#pragma once

#include <vector>

#include "baton/v1/completions.pb.h"
#include "baton/v1/worker.pb.h"
#include "model/tokenizer.h"

namespace baton {

// What `echo` puts in front of every choice, in increments small enough for one message each: the
// text of the prompt with its control tokens written out, and its ids. The text is whole by itself:
// half a character at its end is U+FFFD, whatever the choice goes on with. REQUIRES: ids below the
// vocabulary.
std::vector<v1::Choice> EchoPrompt(const Tokenizer& tokenizer, const v1::SequenceSpec& sequence);

// Adds the log probabilities, finite ones: of every id, for which `logprobs` holds all but the
// first. False, and nothing is added, when it holds another number.
bool AddPromptLogprobs(const v1::Logprobs& logprobs, std::vector<v1::Choice>& echo);

}  // namespace baton
