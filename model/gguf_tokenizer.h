#pragma once

#include "absl/status/statusor.h"
#include "model/gguf_file.h"
#include "model/tokenizer_data.h"

namespace baton {

// The `tokenizer.ggml.*` keys of a byte-level BPE tokenizer. UNIMPLEMENTED for another tokenizer
// model or a pre-tokenizer rule that is not known.
absl::StatusOr<TokenizerData> ReadGgufTokenizer(const GgufFile& gguf);

}  // namespace baton
