#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cuda/device.h"
#include "tests/emulation/launch_queue.h"

namespace baton::emulated {

// A GPU that is not there: streams, events, copies and graphs in host memory, kernels on fibers,
// matrix products by a stand-in.
//
// Nothing runs before somebody waits for it: waiting for a stream or an event runs what is in front
// of it, asking an event runs one piece of work. A copy to the host fills its target with 0xff when
// it is asked for, a copy to an idle device likewise. So whoever forgets to wait reads wrong values
// every time.
//
// Stricter than CUDA, where CUDA would be slow or silent: the host's side of a copy must be pinned,
// every range must lie inside one allocation of the right kind.
//
// Thread-safe as Device says.
class HostDevice final : public cuda::Device {
 public:
  struct Options {
    std::size_t memory_bytes = std::size_t{1} << 30;
    int multiprocessors = 2;  // few, so that grids stay small
  };

  // What was asked for since the start, or the last ResetCounts.
  struct Counts {
    int device_allocations = 0;
    int pinned_allocations = 0;
    int copies = 0;  // those of a graph count at each of its launches
    std::size_t copied_bytes = 0;
    int fills = 0;
    int other_work = 0;  // kernels and matrix products, launched one by one
    int captures = 0;
    int graph_launches = 0;
    int waits = 0;  // Synchronize of streams and events
  };

  HostDevice() : HostDevice(Options()) {}
  explicit HostDevice(const Options& options);
  ~HostDevice() override;

  // For tests.
  Counts counts() const;
  void ResetCounts();
  // The `nth` allocation from now, 1 is the next, finds no memory; those after it do again.
  void FailAllocation(int nth);
  // The next piece of work that runs fails as a kernel does that reads what it must not.
  void FailNextWork(std::string message);
  std::size_t allocated_bytes() const;  // device memory

  const cuda::DeviceInfo& info() const override { return info_; }
  const cuda::KernelTable& kernels() const override;
  absl::StatusOr<std::unique_ptr<cuda::Gemm>> CreateGemm() override;
  absl::StatusOr<std::size_t> FreeBytes() override;
  absl::StatusOr<std::byte*> AllocateDevice(std::size_t bytes) override;
  void FreeDevice(std::byte* memory) override;
  absl::StatusOr<std::byte*> AllocatePinned(std::size_t bytes) override;
  void FreePinned(std::byte* memory) override;
  absl::StatusOr<cuda::StreamHandle> CreateStream() override;
  void DestroyStream(cuda::StreamHandle stream) override;
  absl::Status Synchronize(cuda::StreamHandle stream) override;
  absl::StatusOr<cuda::EventHandle> CreateEvent() override;
  void DestroyEvent(cuda::EventHandle event) override;
  absl::Status Record(cuda::EventHandle event, cuda::StreamHandle stream) override;
  absl::Status WaitForEvent(cuda::StreamHandle stream, cuda::EventHandle event) override;
  absl::StatusOr<bool> IsDone(cuda::EventHandle event) override;
  absl::Status Synchronize(cuda::EventHandle event) override;
  absl::Status Copy(const cuda::AsyncCopy& copy, cuda::StreamHandle stream) override;
  absl::Status Fill(std::byte* memory,
                    unsigned char value,
                    std::size_t bytes,
                    cuda::StreamHandle stream) override;
  absl::Status BeginCapture(cuda::StreamHandle stream) override;
  absl::StatusOr<cuda::GraphHandle> EndCapture(cuda::StreamHandle stream) override;
  absl::Status LaunchGraph(cuda::GraphHandle graph, cuda::StreamHandle stream) override;
  void DestroyGraph(cuda::GraphHandle graph) override;
  absl::Status ToStatus(cuda::LaunchCode code, const char* what) const override;
  absl::Status LastError() const override;

 private:
  class Queue;
  // A place in a queue that an event stands for.
  struct Mark {
    Queue* queue;  // alive until the mark is passed
    bool passed = false;
  };
  struct HostEvent {
    std::shared_ptr<Mark> mark;  // null: never recorded
  };
  // One piece of work: exactly one of `run`, `passes` and `awaits` is set.
  struct Work {
    std::function<void()> run;
    std::shared_ptr<Mark> passes;
    std::shared_ptr<Mark> awaits;
    std::size_t copied_bytes = 0;
    // Host memory that it reads when it runs.
    const std::byte* source = nullptr;
    std::size_t source_bytes = 0;
  };
  struct Graph {
    std::vector<Work> work;
  };
  struct Allocation {
    std::size_t bytes = 0;
    bool mapped = false;
  };
  using Allocations = std::map<const std::byte*, Allocation>;

  static Queue& QueueOf(cuda::StreamHandle stream);

  absl::StatusOr<std::byte*> Allocate(std::size_t bytes, Allocations& owned);
  void Free(std::byte* memory, Allocations& owned);
  absl::Status CheckRange(const char* what,
                          const std::byte* memory,
                          std::size_t bytes,
                          const Allocations& owned) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckUsable() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckNotCapturing(const char* what) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsReadByQueuedWork(const std::byte* memory, std::size_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Put(Queue& queue, Work work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Runs work of the queue until `mark` is passed, everything when it is null.
  void RunUntil(Queue& queue, const Mark* mark) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Runs one piece of what is in front of the queue, unless another thread is at it.
  void RunOne(Queue& queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunFront(Queue& queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const cuda::DeviceInfo info_;
  mutable absl::Mutex mutex_;
  absl::CondVar progress_;
  // Shared with whoever runs their work while a stream may be destroyed.
  std::vector<std::shared_ptr<Queue>> queues_ ABSL_GUARDED_BY(mutex_);
  Allocations device_memory_ ABSL_GUARDED_BY(mutex_);
  Allocations pinned_memory_ ABSL_GUARDED_BY(mutex_);
  std::size_t device_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int failing_allocation_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<std::string> failing_work_ ABSL_GUARDED_BY(mutex_);
  std::optional<std::thread::id> capturing_thread_ ABSL_GUARDED_BY(mutex_);
  absl::Status error_ ABSL_GUARDED_BY(mutex_);  // stays
  Counts counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::emulated
