#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/figure.h"
#include "engine/engine.h"
#include "kernels/ops.h"
#include "model/checkpoint.h"

namespace baton {

struct EngineRunnerOptions {
  std::string isa = "auto";
  int threads = 1;
  int max_batch_tokens = 256;  // what the servers run with
  std::size_t kv_pool_bytes = std::size_t{256} << 20;
};

// Measures figures on a real engine in this process, through its scheduler. Prompts are random
// tokens, never the same twice, so that nothing can come from a cache; tokens are chosen greedily.
//
// Not thread-safe.
class EngineRunner {
 public:
  // Loads the weights and computes a few tokens, so that the first figure finds everything warm.
  // Borrows the checkpoint.
  static absl::StatusOr<std::unique_ptr<EngineRunner>> Create(const EngineRunnerOptions& options,
                                                              const Checkpoint& checkpoint);
  // On any backend; `options.isa` and `threads` have no meaning.
  static absl::StatusOr<std::unique_ptr<EngineRunner>> CreateOn(std::unique_ptr<Backend> backend,
                                                                const EngineRunnerOptions& options,
                                                                const Checkpoint& checkpoint);

  // Prefill: from Submit to the first token. Decode: from the first token of the stream that starts
  // last to its last token; all other streams take a token in every step of this time.
  absl::StatusOr<Timing> Measure(const Figure& figure);

  // Of the code path: "avx512bf16".
  const std::string& isa() const { return isa_; }

 private:
  EngineRunner(const EngineRunnerOptions& options,
               const Checkpoint& checkpoint,
               std::unique_ptr<Backend> backend,
               std::unique_ptr<Engine> engine);

  absl::StatusOr<Timing> MeasurePrefill(int tokens);
  absl::StatusOr<Timing> MeasureDecode(const DecodeShape& shape);
  std::vector<TokenId> RandomPrompt(int tokens);

  const int max_batch_tokens_;
  const int vocabulary_;
  const std::unique_ptr<Backend> backend_;
  const std::string isa_;
  const std::unique_ptr<Engine> engine_;
  std::uint64_t seed_ = 0;
};

}  // namespace baton
