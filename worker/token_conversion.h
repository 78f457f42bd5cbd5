#pragma once

#include <vector>

#include "baton/v1/completions.pb.h"
#include "kernels/select_tokens.h"

namespace baton {

// A chosen token with its log probability, to and from the wire.

v1::TokenLogprob ToProto(const SelectedToken& token);
v1::Logprobs ToProto(const std::vector<SelectedToken>& tokens);

SelectedToken FromProto(const v1::TokenLogprob& token);
std::vector<SelectedToken> FromProto(const v1::Logprobs& tokens);

}  // namespace baton
