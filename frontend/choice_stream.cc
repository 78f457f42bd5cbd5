#include "frontend/choice_stream.h"

#include <cmath>
#include <utility>

namespace baton {
namespace {

constexpr float kImpossible = -9999;

float Finite(float logprob) {
  return std::isfinite(logprob) ? logprob : kImpossible;
}

}  // namespace

ChoiceStream::ChoiceStream(std::uint32_t index,
                           const Tokenizer& tokenizer,
                           const std::vector<std::string>& stop,
                           std::uint32_t min_tokens)
    : index_(index), text_(tokenizer, stop, min_tokens) {}

v1::Choice ChoiceStream::Append(const GeneratedToken& token) {
  begun_ = true;
  v1::Choice increment = Increment(text_.Append(token.id));
  increment.add_token_ids(token.id.value());
  if (token.logprob.has_value()) {
    v1::TokenLogprob& logprob = *increment.mutable_logprobs()->add_tokens();
    logprob = *token.logprob;
    MakeFinite(logprob);
  }
  return increment;
}

v1::Choice ChoiceStream::Close(v1::FinishReason reason) {
  closed_ = true;
  v1::Choice last = Increment(text_.stopped() ? std::string() : text_.Finish());
  last.set_finish_reason(text_.stopped() ? v1::FINISH_REASON_STOP : reason);
  last.set_stop_match(text_.stop_match());
  return last;
}

v1::Choice ChoiceStream::Increment(std::string text) const {
  v1::Choice increment;
  increment.set_index(index_);
  increment.set_text(std::move(text));
  return increment;
}

void MakeFinite(v1::TokenLogprob& logprob) {
  logprob.set_logprob(Finite(logprob.logprob()));
  for (v1::TokenLogprob::Alternative& alternative : *logprob.mutable_alternatives()) {
    alternative.set_logprob(Finite(alternative.logprob()));
  }
}

}  // namespace baton
