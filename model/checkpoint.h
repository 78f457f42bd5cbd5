#pragma once

#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/sha256.h"
#include "common/strong_id.h"
#include "model/chat.h"
#include "model/model_config.h"
#include "model/tokenizer.h"
#include "model/weight.h"

namespace baton {

struct ModelParts;

// A model opened from disk: its numbers, its text side, and its weights, still in the file's own
// encoding.
//
// Open checks everything that can be checked without reading the weights themselves, so that
// whatever opens can be read. The files stay mapped and must not be changed in place while the
// object lives.
//
// Immutable after construction and therefore thread-safe.
class Checkpoint {
 public:
  // `path` is a GGUF file or a Hugging Face model directory. With `cache_folder`, the digest of the
  // weight files is looked up there and kept there (see model/fingerprint.h). Every error about a
  // file's content names the file, the tensor or key, and the byte offset: INVALID_ARGUMENT for a
  // damaged file, UNIMPLEMENTED for a sound one that asks for something Baton does not do.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& path,
                                                          const std::string& cache_folder = "");

  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  const ModelConfig& config() const;
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ChatFormat& chat_format() const { return chat_format_; }
  // Equal for equal weight files, wherever they lie; differs between formats of the same weights.
  const Digest& fingerprint() const { return fingerprint_; }

  WeightShape Shape(WeightKind kind) const;

  // Decodes rows [first_row, first_row + count) of one weight into `out`, row-major [count,
  // columns].
  //
  // Query and key rows come in half-split rotary order (pairs (i, i + D/2)) whatever the file's own
  // order is. kHead of a tied model is the embedding. `layer` is ignored for the three kinds
  // outside layers. INVALID_ARGUMENT when the range or the size of `out` does not fit; DATA_LOSS
  // naming file, tensor and offset for a value that is not finite.
  absl::Status ReadRows(
      WeightKind kind, LayerIndex layer, int first_row, int count, std::span<float> out) const;

 private:
  Checkpoint(std::unique_ptr<ModelParts> parts,
             std::unique_ptr<Tokenizer> tokenizer,
             ChatFormat chat_format,
             const Digest& fingerprint);

  const std::unique_ptr<const ModelParts> parts_;
  const std::unique_ptr<const Tokenizer> tokenizer_;
  const ChatFormat chat_format_;
  const Digest fingerprint_;
};

}  // namespace baton
