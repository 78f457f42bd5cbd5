#pragma once

#include <string>

#include "absl/status/status.h"
#include "model/model_config.h"

namespace baton {

// Makes `directory` and writes a Hugging Face model of this shape: random bf16 weights of the size
// that keeps activations in bounds, norms of 1, and a tokenizer that knows a few of the tokens. Its
// tokens mean nothing; its arithmetic costs what that of a real model costs, unlike that of zeros.
//
// Written piece by piece: gigabytes pass through a few MB of memory. The same shape gives the same
// bytes.
absl::Status WriteShapeModel(const ModelConfig& config, const std::string& directory);

}  // namespace baton
