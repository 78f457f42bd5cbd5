#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "baton/v1/completions.pb.h"
#include "baton/v1/worker.pb.h"
#include "engine/engine.h"
#include "frontend/request_validation.h"
#include "kernels/ops.h"
#include "model/checkpoint.h"
#include "tests/support/prompts.h"
#include "tests/support/test_models.h"

namespace baton {

// A single engine in the test's own process: what every path has to agree with. Thread-safe.
class ReferenceEngine {
 public:
  static absl::StatusOr<std::unique_ptr<ReferenceEngine>> Start(const TestModel& model,
                                                                std::size_t kv_pool_bytes = 32
                                                                                            << 20);

  // The tokens of a request, of which `path` is ignored. Blocks until they are there.
  absl::StatusOr<Tokens> Generate(const v1::CompleteRequest& request);

  // What a worker would be asked to compute.
  absl::StatusOr<v1::SequenceSpec> SpecOf(const v1::CompleteRequest& request) const;

  const Checkpoint& checkpoint() const { return *checkpoint_; }

 private:
  ReferenceEngine() = default;

  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<RequestValidator> validator_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace baton
