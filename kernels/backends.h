#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/device.h"
#include "kernels/ops.h"

namespace baton {

struct BackendOptions {
  // auto|cpu|cuda|emulated; auto takes a GPU where this build and machine have one, else the CPU
  std::string device = "auto";
  CpuOptions cpu;
};

struct ChosenBackend {
  std::unique_ptr<Backend> backend;
  // Whose memory the backend allocates, for those who move it; owned by the backend. Null: host
  // memory.
  cuda::Device* device = nullptr;
  std::string reason;  // for the log
};

// The one place that decides where a model runs.
//
// INVALID_ARGUMENT for a name that is none of these; FAILED_PRECONDITION with the reason where the
// device that was asked for is not there; nothing is put in its place.
absl::StatusOr<ChosenBackend> CreateBackend(const BackendOptions& options);

}  // namespace baton
