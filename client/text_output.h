#pragma once

#include <cstddef>
#include <string>

#include "baton/v1/completions.pb.h"

namespace baton {

// "[colocated, SHORT_PROMPT; 12 prompt + 64 new tokens; first token 0.102 s, total 1.310 s]": what
// one request was, on one line; of a split one also who took part. `dim` puts it between the
// terminal's codes for faint text.
std::string DescribeRequest(const v1::Usage& usage, const v1::Timeline& timeline, bool dim);

// "[choice 2]": the line above one of several completions. `dim` as above.
std::string DescribeChoice(std::size_t index, bool dim);

// A line for each token: its id, its log probability, and the alternatives likewise. Empty without
// log probabilities.
std::string DescribeLogprobs(const v1::Choice& choice);

// One paragraph a model.
std::string DescribeModels(const v1::ListModelsResponse& models);

}  // namespace baton
