#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/copy_direction.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/launch_types.h"

// The host side of a GPU behind one class, so that whatever stands around the kernels runs where no
// GPU is: the CUDA runtime implements it (cuda_device.h), and so does the host alone
// (tests/emulation/host_device.h). Use the owner classes of handles.h, not the calls that make and
// destroy things.
namespace baton::cuda {

struct EventTag;
using EventHandle = EventTag*;
struct GraphTag;
using GraphHandle = GraphTag*;

struct DeviceInfo {
  std::string kind;              // "cuda"; "emulated": no GPU, and products by a stand-in
  std::string name;              // "NVIDIA H200"
  int multiprocessors = 0;       // what a grid should fill
  int compute_capability = 0;    // 90 for 9.0
  std::size_t memory_bytes = 0;  // of the whole device
};

struct AsyncCopy {
  std::byte* destination = nullptr;
  const std::byte* source = nullptr;
  std::size_t bytes = 0;
  CopyDirection direction = CopyDirection::kDeviceToDevice;
};

// One GPU.
//
// Work that is put on a stream runs in the order in which it was put there, at any time until the
// stream is waited for; streams know nothing of each other but what WaitForEvent says. Host memory
// that an asynchronous copy names must be pinned, and be left alone until the stream has passed the
// copy.
//
// Errors carry the name of the CUDA error. A call that could not get memory gives
// RESOURCE_EXHAUSTED. What a kernel does wrong shows in a later call (INTERNAL) and, from then on,
// in every call: the device is lost to this process, and LastError says why.
//
// Thread-safe: different threads may use different streams, events and graphs at the same time, the
// engine thread and the transfer thread do. One stream, event or graph is used by one thread at a
// time; two threads may share an event if one records it and the other only asks for it afterwards.
// While a thread captures, others go on as they like.
class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;
  virtual const KernelTable& kernels() const = 0;
  // Matrix products on this device; borrows it. FAILED_PRECONDITION where their library is absent.
  virtual absl::StatusOr<std::unique_ptr<Gemm>> CreateGemm() = 0;

  // What AllocateDevice could still give, near enough.
  virtual absl::StatusOr<std::size_t> FreeBytes() = 0;
  // Device memory, aligned to 256 bytes, with any content. The host must not touch it.
  virtual absl::StatusOr<std::byte*> AllocateDevice(std::size_t bytes) = 0;
  virtual void FreeDevice(std::byte* memory) = 0;
  // Host memory that copies reach without a detour and kernels may read and write; aligned to 4
  // KiB.
  virtual absl::StatusOr<std::byte*> AllocatePinned(std::size_t bytes) = 0;
  virtual void FreePinned(std::byte* memory) = 0;

  virtual absl::StatusOr<StreamHandle> CreateStream() = 0;
  virtual void DestroyStream(StreamHandle stream) = 0;  // waits for what is on it
  virtual absl::Status Synchronize(StreamHandle stream) = 0;

  virtual absl::StatusOr<EventHandle> CreateEvent() = 0;
  virtual void DestroyEvent(EventHandle event) = 0;
  // The event stands for everything put on `stream` so far.
  virtual absl::Status Record(EventHandle event, StreamHandle stream) = 0;
  // What is put on `stream` from now on runs after what the event stands for.
  virtual absl::Status WaitForEvent(StreamHandle stream, EventHandle event) = 0;
  // Whether all that the event stands for is done; never waits. True for one never recorded. Who
  // needs a deadline asks this until it passes.
  virtual absl::StatusOr<bool> IsDone(EventHandle event) = 0;
  virtual absl::Status Synchronize(EventHandle event) = 0;  // no deadline, like CUDA's

  virtual absl::Status Copy(const AsyncCopy& copy, StreamHandle stream) = 0;
  virtual absl::Status Fill(std::byte* memory,
                            unsigned char value,
                            std::size_t bytes,
                            StreamHandle stream) = 0;

  // Between these two, what is put on the stream is noted and not run.
  virtual absl::Status BeginCapture(StreamHandle stream) = 0;
  virtual absl::StatusOr<GraphHandle> EndCapture(StreamHandle stream) = 0;
  // Puts everything that was noted on a stream, with the arguments of then.
  virtual absl::Status LaunchGraph(GraphHandle graph, StreamHandle stream) = 0;
  virtual void DestroyGraph(GraphHandle graph) = 0;

  // What a launch function of kernels() returned, as a status naming `what` was launched.
  virtual absl::Status ToStatus(LaunchCode code, const char* what) const = 0;
  // Not OK once the device is lost.
  virtual absl::Status LastError() const = 0;
};

}  // namespace baton::cuda
