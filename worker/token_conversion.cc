#include "worker/token_conversion.h"

namespace baton {

v1::TokenLogprob ToProto(const SelectedToken& token) {
  v1::TokenLogprob proto;
  proto.set_id(token.token.value());
  proto.set_logprob(token.logprob);
  for (const TokenLogprob& alternative : token.alternatives) {
    v1::TokenLogprob::Alternative& entry = *proto.add_alternatives();
    entry.set_id(alternative.token.value());
    entry.set_logprob(alternative.logprob);
  }
  return proto;
}

v1::Logprobs ToProto(const std::vector<SelectedToken>& tokens) {
  v1::Logprobs proto;
  proto.mutable_tokens()->Reserve(static_cast<int>(tokens.size()));
  for (const SelectedToken& token : tokens) {
    *proto.add_tokens() = ToProto(token);
  }
  return proto;
}

SelectedToken FromProto(const v1::TokenLogprob& token) {
  SelectedToken selected{.token = TokenId(token.id()), .logprob = token.logprob()};
  selected.alternatives.reserve(static_cast<std::size_t>(token.alternatives_size()));
  for (const v1::TokenLogprob::Alternative& alternative : token.alternatives()) {
    selected.alternatives.push_back({TokenId(alternative.id()), alternative.logprob()});
  }
  return selected;
}

std::vector<SelectedToken> FromProto(const v1::Logprobs& tokens) {
  std::vector<SelectedToken> selected;
  selected.reserve(static_cast<std::size_t>(tokens.tokens_size()));
  for (const v1::TokenLogprob& token : tokens.tokens()) {
    selected.push_back(FromProto(token));
  }
  return selected;
}

}  // namespace baton
