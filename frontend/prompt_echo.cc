#include "frontend/prompt_echo.h"

#include "frontend/choice_stream.h"
#include "model/detokenizer.h"

namespace baton {
namespace {

// With 20 alternatives each, 64 KiB.
constexpr int kTokensAtOnce = 256;

}  // namespace

std::vector<v1::Choice> EchoPrompt(const Tokenizer& tokenizer, const v1::SequenceSpec& sequence) {
  IncrementalDetokenizer detokenizer(tokenizer, IncrementalDetokenizer::ControlTokens::kKeep);
  std::vector<v1::Choice> echo;
  for (int i = 0; i < sequence.prompt_size(); ++i) {
    if (i % kTokensAtOnce == 0) {
      echo.emplace_back();
    }
    echo.back().add_token_ids(sequence.prompt(i));
    echo.back().mutable_text()->append(detokenizer.Append(TokenId(sequence.prompt(i))));
  }
  if (!echo.empty()) {
    echo.back().mutable_text()->append(detokenizer.Flush());
  }
  return echo;
}

bool AddPromptLogprobs(const v1::Logprobs& logprobs, std::vector<v1::Choice>& echo) {
  int tokens = 0;
  for (const v1::Choice& increment : echo) {
    tokens += increment.token_ids_size();
  }
  if (logprobs.tokens_size() + 1 != tokens) {
    return false;
  }
  int next = -1;  // nothing precedes the first
  for (v1::Choice& increment : echo) {
    for (const std::uint32_t id : increment.token_ids()) {
      v1::TokenLogprob& entry = *increment.mutable_logprobs()->add_tokens();
      if (next >= 0) {
        entry = logprobs.tokens(next);
        MakeFinite(entry);
      }
      entry.set_id(id);
      ++next;
    }
  }
  return true;
}

}  // namespace baton
