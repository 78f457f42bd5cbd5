#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/figure.h"
#include "common/clock.h"

namespace baton {

enum class PeerWeights {
  kBf16,    // the model in bf16: the weights that our engine computes with
  kAsGiven  // the model file as it is
};

// How the peer did in one figure. Its programs time what they report themselves; the processor time
// is that of the whole process, loading and warming up included, scaled to the reported time.
struct PeerTiming {
  Timing timing;
  bool repacked = true;  // false: it crashed with its own packing of the weights, and ran without
};

// llama.cpp, by its own benchmark programs.
//
// Not thread-safe.
class LlamaCpp {
 public:
  // `folder` holds llama-bench, llama-batched-bench and llama-quantize. The model in bf16 is made
  // as `bf16_file`, which is kept, unless it is there already. NOT_FOUND for a program that is
  // missing, INVALID_ARGUMENT when the model is no GGUF file.
  static absl::StatusOr<std::unique_ptr<LlamaCpp>> Create(const std::string& folder,
                                                          const std::string& model_file,
                                                          const std::string& bf16_file);

  // DEADLINE_EXCEEDED when a program takes longer than `patience`.
  absl::StatusOr<PeerTiming> Measure(const Figure& figure,
                                     PeerWeights weights,
                                     Duration patience) const;

 private:
  LlamaCpp(std::string folder, std::string model_file, std::string bf16_file);

  const std::string folder_;
  const std::string model_file_;
  const std::string bf16_file_;
};

// The command that measures `figure` on a model file, and the seconds that the figure took from
// what it wrote to standard output; parts of LlamaCpp on their own for tests.
std::vector<std::string> PeerCommand(const std::string& folder,
                                     const std::string& model_file,
                                     const Figure& figure);
absl::StatusOr<double> ParsePeerSeconds(const Figure& figure, const std::string& output);

}  // namespace baton
