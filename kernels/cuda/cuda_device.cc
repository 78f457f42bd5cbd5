#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/status_macros.h"
#include "kernels/cuda/cublaslt_gemm.h"
#include "kernels/cuda/devices.h"

namespace baton::cuda {
namespace {

cudaStream_t Native(StreamHandle stream) {
  return reinterpret_cast<cudaStream_t>(stream);
}
cudaEvent_t Native(EventHandle event) {
  return reinterpret_cast<cudaEvent_t>(event);
}
cudaGraphExec_t Native(GraphHandle graph) {
  return reinterpret_cast<cudaGraphExec_t>(graph);
}

cudaMemcpyKind KindOf(CopyDirection direction) {
  switch (direction) {
    case CopyDirection::kHostToDevice:
      return cudaMemcpyHostToDevice;
    case CopyDirection::kDeviceToHost:
      return cudaMemcpyDeviceToHost;
    case CopyDirection::kDeviceToDevice:
      return cudaMemcpyDeviceToDevice;
  }
  return cudaMemcpyDefault;
}

// After these every call of the process fails: its context is gone.
bool LosesTheDevice(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorContained:
    case cudaErrorDevicesUnavailable:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

// The runtime's view of device 0. A thread's calls go to device 0 without being told.
//
// Thread-safe as Device says: the runtime is.
class CudaDevice final : public Device {
 public:
  explicit CudaDevice(DeviceInfo info) : info_(std::move(info)) {}

  const DeviceInfo& info() const override { return info_; }
  const KernelTable& kernels() const override { return GpuKernels(); }
  absl::StatusOr<std::unique_ptr<Gemm>> CreateGemm() override { return CreateCublasLtGemm(*this); }

  absl::StatusOr<std::size_t> FreeBytes() override {
    std::size_t free = 0;
    std::size_t total = 0;
    RETURN_IF_ERROR(Checked(cudaMemGetInfo(&free, &total), "ask for free device memory"));
    return free;
  }
  absl::StatusOr<std::byte*> AllocateDevice(std::size_t bytes) override {
    void* memory = nullptr;
    RETURN_IF_ERROR(Allocated(cudaMalloc(&memory, bytes), bytes, "device"));
    return static_cast<std::byte*>(memory);
  }
  void FreeDevice(std::byte* memory) override { NotedOnly(cudaFree(memory)); }
  absl::StatusOr<std::byte*> AllocatePinned(std::size_t bytes) override {
    void* memory = nullptr;
    RETURN_IF_ERROR(
        Allocated(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable), bytes, "pinned host"));
    return static_cast<std::byte*>(memory);
  }
  void FreePinned(std::byte* memory) override { NotedOnly(cudaFreeHost(memory)); }

  absl::StatusOr<StreamHandle> CreateStream() override {
    cudaStream_t stream = nullptr;
    RETURN_IF_ERROR(
        Checked(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create a stream"));
    return reinterpret_cast<StreamHandle>(stream);
  }
  void DestroyStream(StreamHandle stream) override {
    NotedOnly(cudaStreamSynchronize(Native(stream)));
    NotedOnly(cudaStreamDestroy(Native(stream)));
  }
  absl::Status Synchronize(StreamHandle stream) override {
    return Checked(cudaStreamSynchronize(Native(stream)), "wait for a stream");
  }

  absl::StatusOr<EventHandle> CreateEvent() override {
    cudaEvent_t event = nullptr;
    RETURN_IF_ERROR(
        Checked(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "create an event"));
    return reinterpret_cast<EventHandle>(event);
  }
  void DestroyEvent(EventHandle event) override { NotedOnly(cudaEventDestroy(Native(event))); }
  absl::Status Record(EventHandle event, StreamHandle stream) override {
    return Checked(cudaEventRecord(Native(event), Native(stream)), "record an event");
  }
  absl::Status WaitForEvent(StreamHandle stream, EventHandle event) override {
    return Checked(cudaStreamWaitEvent(Native(stream), Native(event), 0),
                   "let a stream wait for an event");
  }
  absl::StatusOr<bool> IsDone(EventHandle event) override {
    const cudaError_t error = cudaEventQuery(Native(event));
    if (error == cudaErrorNotReady) {
      cudaGetLastError();  // it is not one, but stays for the next caller to find
      return false;
    }
    RETURN_IF_ERROR(Checked(error, "ask for an event"));
    return true;
  }
  absl::Status Synchronize(EventHandle event) override {
    return Checked(cudaEventSynchronize(Native(event)), "wait for an event");
  }

  absl::Status Copy(const AsyncCopy& copy, StreamHandle stream) override {
    return Checked(cudaMemcpyAsync(copy.destination, copy.source, copy.bytes,
                                   KindOf(copy.direction), Native(stream)),
                   "copy");
  }
  absl::Status Fill(std::byte* memory,
                    unsigned char value,
                    std::size_t bytes,
                    StreamHandle stream) override {
    return Checked(cudaMemsetAsync(memory, value, bytes, Native(stream)), "fill memory");
  }

  absl::Status BeginCapture(StreamHandle stream) override {
    // Other threads may allocate meanwhile.
    return Checked(cudaStreamBeginCapture(Native(stream), cudaStreamCaptureModeThreadLocal),
                   "begin a capture");
  }
  absl::StatusOr<GraphHandle> EndCapture(StreamHandle stream) override {
    cudaGraph_t graph = nullptr;
    RETURN_IF_ERROR(Checked(cudaStreamEndCapture(Native(stream), &graph), "end a capture"));
    cudaGraphExec_t executable = nullptr;
    const absl::Status made =
        Checked(cudaGraphInstantiate(&executable, graph, 0), "instantiate a graph");
    NotedOnly(cudaGraphDestroy(graph));
    RETURN_IF_ERROR(made);
    return reinterpret_cast<GraphHandle>(executable);
  }
  absl::Status LaunchGraph(GraphHandle graph, StreamHandle stream) override {
    return Checked(cudaGraphLaunch(Native(graph), Native(stream)), "launch a graph");
  }
  void DestroyGraph(GraphHandle graph) override { NotedOnly(cudaGraphExecDestroy(Native(graph))); }

  absl::Status ToStatus(LaunchCode code, const char* what) const override {
    return Checked(static_cast<cudaError_t>(code), what);
  }
  absl::Status LastError() const override {
    absl::MutexLock lock(&mutex_);
    return error_;
  }

 private:
  absl::Status Checked(cudaError_t error, const char* what) const {
    if (error == cudaSuccess) {
      return absl::OkStatus();
    }
    cudaGetLastError();  // seen
    const std::string message =
        absl::StrCat(what, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error));
    if (!LosesTheDevice(error)) {
      return absl::InternalError(message);
    }
    absl::MutexLock lock(&mutex_);
    if (error_.ok()) {
      error_ = absl::InternalError(absl::StrCat("the device is lost: ", message));
    }
    return error_;
  }
  absl::Status Allocated(cudaError_t error, std::size_t bytes, const char* kind) const {
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return absl::ResourceExhaustedError(absl::StrCat("allocate ", bytes, " bytes of ", kind,
                                                       " memory: ", cudaGetErrorName(error)));
    }
    return Checked(error, "allocate memory");
  }
  // Of what gives something back: it can do nothing about an error but keep it for the others.
  void NotedOnly(cudaError_t error) const { Checked(error, "give back").IgnoreError(); }

  const DeviceInfo info_;
  mutable absl::Mutex mutex_;
  mutable absl::Status error_ ABSL_GUARDED_BY(mutex_);  // stays
};

absl::Status NoGpu(cudaError_t error) {
  cudaGetLastError();
  return absl::FailedPreconditionError(
      absl::StrCat(cudaGetErrorName(error), ": ", cudaGetErrorString(error)));
}

}  // namespace
}  // namespace baton::cuda

namespace baton {

absl::StatusOr<std::unique_ptr<cuda::Device>> OpenGpu() {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    return cuda::NoGpu(error);
  }
  if (count == 0) {
    return absl::FailedPreconditionError("the driver shows no device");
  }
  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, 0); error != cudaSuccess) {
    return cuda::NoGpu(error);
  }
  const int capability = 10 * properties.major + properties.minor;
  if (capability < 80) {
    return absl::FailedPreconditionError(absl::StrCat(properties.name, " is of compute capability ",
                                                      properties.major, ".", properties.minor,
                                                      ", the kernels need 8.0"));
  }
  // Makes the context now, so that what is wrong with it shows here.
  if (const cudaError_t error = cudaFree(nullptr); error != cudaSuccess) {
    return cuda::NoGpu(error);
  }
  return std::make_unique<cuda::CudaDevice>(
      cuda::DeviceInfo{.kind = "cuda",
                       .name = properties.name,
                       .multiprocessors = properties.multiProcessorCount,
                       .compute_capability = capability,
                       .memory_bytes = properties.totalGlobalMem});
}

}  // namespace baton
