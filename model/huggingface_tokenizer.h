#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "model/json_document.h"
#include "model/tokenizer_data.h"

namespace baton {

// tokenizer.json of a byte-level BPE tokenizer, without bos, eos and further ends. `vocabulary` is
// the model's number of ids; those that the file does not name are unused. UNIMPLEMENTED, naming
// the key, for any part that would change the tokens and is not known: normalizers, other
// pre-tokenizers, post-processors that add tokens, and so on.
absl::StatusOr<TokenizerData> ReadHuggingFaceTokenizer(const JsonDocument& document,
                                                       int vocabulary);

}  // namespace baton
