#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "baton/v1/completions.pb.h"
#include "frontend/generator.h"
#include "frontend/text_stream.h"

namespace baton {

// One choice of a request, as the increments that a client gets of it: the text up to a stop
// string, and beside it every token up to the one that completed that string.
//
// Not thread-safe.
class ChoiceStream {
 public:
  // `tokenizer` must outlive the stream.
  ChoiceStream(std::uint32_t index,
               const Tokenizer& tokenizer,
               const std::vector<std::string>& stop,
               std::uint32_t min_tokens);

  // REQUIRES: !stopped() and !closed().
  v1::Choice Append(const GeneratedToken& token);

  // The last increment: the text that was held back, and why the choice has ended; a stop string
  // goes before `reason`. REQUIRES: !closed().
  v1::Choice Close(v1::FinishReason reason);

  std::uint32_t index() const { return index_; }
  bool begun() const { return begun_; }  // a token has come
  bool stopped() const { return text_.stopped(); }
  bool closed() const { return closed_; }

 private:
  v1::Choice Increment(std::string text) const;

  const std::uint32_t index_;
  TextStream text_;
  bool begun_ = false;
  bool closed_ = false;
};

// Replaces log probabilities of -infinity and NaN, which JSON and many a client cannot take, by
// -9999.
void MakeFinite(v1::TokenLogprob& logprob);

}  // namespace baton
