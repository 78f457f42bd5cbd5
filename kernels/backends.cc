#include "kernels/backends.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/devices.h"

namespace baton {
namespace {

absl::StatusOr<ChosenBackend> OnCpu(const CpuOptions& options, std::string reason) {
  ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, CreateCpuBackend(options));
  return ChosenBackend{.backend = std::move(backend), .reason = std::move(reason)};
}

absl::StatusOr<ChosenBackend> OnDevice(std::unique_ptr<cuda::Device> device, std::string reason) {
  cuda::Device* const borrowed = device.get();
  ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, cuda::CreateCudaBackend(std::move(device)));
  return ChosenBackend{
      .backend = std::move(backend), .device = borrowed, .reason = std::move(reason)};
}

// FAILED_PRECONDITION where there is no GPU, or not what it takes to use it.
absl::StatusOr<ChosenBackend> OnGpu() {
  ASSIGN_OR_RETURN(std::unique_ptr<cuda::Device> gpu, OpenGpu());
  const std::string name = gpu->info().name;
  return OnDevice(std::move(gpu), absl::StrCat("found ", name));
}

absl::Status WithFlag(const char* device, const absl::Status& status) {
  return {status.code(), absl::StrCat("device ", device, ": ", std::string(status.message()))};
}

}  // namespace

absl::StatusOr<ChosenBackend> CreateBackend(const BackendOptions& options) {
  if (options.device == "cpu") {
    return OnCpu(options.cpu, "asked for by --device");
  }
  if (options.device == "emulated") {
    absl::StatusOr<std::unique_ptr<cuda::Device>> device = OpenEmulatedGpu();
    if (!device.ok()) {
      return WithFlag("emulated", device.status());
    }
    return OnDevice(*std::move(device),
                    "asked for by --device: CUDA kernels emulated on this processor, for tests; "
                    "matrix products by a stand-in for cuBLASLt");
  }
  if (options.device != "auto" && options.device != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("device: '", options.device, "' is none of auto, cpu, cuda and emulated"));
  }
  absl::StatusOr<ChosenBackend> chosen = OnGpu();
  if (chosen.ok()) {
    return chosen;
  }
  if (options.device == "cuda") {
    return WithFlag("cuda", chosen.status());
  }
  if (!absl::IsFailedPrecondition(chosen.status())) {
    return WithFlag("auto", chosen.status());
  }
  return OnCpu(options.cpu, absl::StrCat("no GPU: ", std::string(chosen.status().message())));
}

}  // namespace baton
