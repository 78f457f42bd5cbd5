#pragma once

#include "absl/status/statusor.h"
#include "model/json_document.h"
#include "model/model_config.h"

namespace baton {

// config.json of a llama model. UNIMPLEMENTED, naming the key, for another architecture and for
// what Baton does not compute: biases, rotary scaling, another activation, quantized weights.
absl::StatusOr<ModelConfig> ReadHuggingFaceConfig(const JsonDocument& document);

}  // namespace baton
