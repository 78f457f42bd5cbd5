#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/load_generator.h"

namespace baton {

// Load on one fleet of a comparison. No prompt comes twice: every run has tokens of its own, so
// that nothing is found in a cache but what the workload itself repeats.
//
// Not thread-safe.
class BenchLoad {
 public:
  static absl::StatusOr<std::unique_ptr<BenchLoad>> Create(const std::string& router);

  // Short and long prompts on every worker and by every path, so that the first run finds memory
  // touched and connections made. An error when one is not answered.
  absl::Status WarmUp(bool splits);
  absl::StatusOr<LoadRun> Run(Workload workload);

  const std::string& model() const { return model_; }
  // That KV blocks took in the warm-up; empty without a split.
  const std::string& transport() const { return transport_; }

 private:
  BenchLoad() = default;

  std::string model_;
  std::string transport_;
  std::unique_ptr<LoadGenerator> generator_;
};

}  // namespace baton
