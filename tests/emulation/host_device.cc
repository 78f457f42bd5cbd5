#include "tests/emulation/host_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "kernels/cuda/devices.h"
#include "tests/emulation/host_gemm.h"

namespace baton::emulated {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::align_val_t kAlignment{kPageBytes};
// Larger ones are mapped, so that pages nobody touches cost nothing; smaller ones come from the
// heap, where an address sanitizer watches their ends.
constexpr std::size_t kLargestHeapAllocation = std::size_t{1} << 20;
// What new device memory holds: not numbers, and no index.
constexpr int kPoisonByte = 0xff;

bool Overlap(const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

// Zeros of whole pages of a mapping are taken from the system.
void FillMemory(std::byte* memory, int value, std::size_t bytes, bool mapped) {
  if (value == 0 && mapped && bytes >= kLargestHeapAllocation &&
      reinterpret_cast<std::uintptr_t>(memory) % kPageBytes == 0) {
    const std::size_t pages = bytes / kPageBytes * kPageBytes;
    if (madvise(memory, pages, MADV_DONTNEED) == 0) {
      memory += pages;
      bytes -= pages;
    }
  }
  std::memset(memory, value, bytes);
}

// The names that launch functions of the emulator can return.
const char* NameOf(cuda::LaunchCode code) {
  switch (code) {
    case 1:
      return "cudaErrorInvalidValue";
    case 2:
      return "cudaErrorMemoryAllocation";
    case 9:
      return "cudaErrorInvalidConfiguration";
    case 701:
      return "cudaErrorLaunchOutOfResources";
    default:
      return "an error";
  }
}

}  // namespace

// A stream: work in order, and whether a thread is at it.
class HostDevice::Queue final : public HostStream {
 public:
  explicit Queue(HostDevice& device) : device_(device) {}

  // What kernels and matrix products put here.
  void Add(std::function<void()> kernel) override {
    absl::MutexLock lock(&device_.mutex_);
    ++device_.counts_.other_work;
    device_.Put(*this, {.run = std::move(kernel)});
  }

  // All guarded by the device's mutex.
  std::deque<Work> work;
  bool busy = false;               // a thread runs its front
  std::unique_ptr<Graph> capture;  // set while a capture is under way

 private:
  HostDevice& device_;
};

HostDevice::Queue& HostDevice::QueueOf(cuda::StreamHandle stream) {
  BATON_CHECK(stream != nullptr);
  return *static_cast<Queue*>(HostStream::Of(stream));
}

HostDevice::HostDevice(const Options& options)
    : info_({.kind = "emulated",
             .name = "host emulation",
             .multiprocessors = options.multiprocessors,
             .compute_capability = 90,
             .memory_bytes = options.memory_bytes}) {}

HostDevice::~HostDevice() {
  // Everything that was made must have been given back: owners outlive no device.
  BATON_CHECK(queues_.empty());
  BATON_CHECK(device_memory_.empty());
  BATON_CHECK(pinned_memory_.empty());
}

HostDevice::Counts HostDevice::counts() const {
  absl::MutexLock lock(&mutex_);
  return counts_;
}

void HostDevice::ResetCounts() {
  absl::MutexLock lock(&mutex_);
  counts_ = {};
}

void HostDevice::FailAllocation(int nth) {
  absl::MutexLock lock(&mutex_);
  failing_allocation_ = nth;
}

void HostDevice::FailNextWork(std::string message) {
  absl::MutexLock lock(&mutex_);
  failing_work_ = std::move(message);
}

std::size_t HostDevice::allocated_bytes() const {
  absl::MutexLock lock(&mutex_);
  return device_bytes_;
}

const cuda::KernelTable& HostDevice::kernels() const {
  return Kernels();
}

absl::StatusOr<std::unique_ptr<cuda::Gemm>> HostDevice::CreateGemm() {
  return std::make_unique<HostGemm>();
}

absl::StatusOr<std::size_t> HostDevice::FreeBytes() {
  absl::MutexLock lock(&mutex_);
  return info_.memory_bytes - device_bytes_;
}

absl::Status HostDevice::CheckUsable() const {
  return error_;
}

absl::Status HostDevice::CheckNotCapturing(const char* what) const {
  if (capturing_thread_ == std::this_thread::get_id()) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": cudaErrorStreamCaptureUnsupported: this thread is capturing"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> HostDevice::Allocate(std::size_t bytes, Allocations& owned) {
  RETURN_IF_ERROR(CheckUsable());
  RETURN_IF_ERROR(CheckNotCapturing("allocate"));
  const bool is_device = &owned == &device_memory_;
  const bool fails = failing_allocation_ > 0 && --failing_allocation_ == 0;
  ++(is_device ? counts_.device_allocations : counts_.pinned_allocations);
  if (fails || (is_device && bytes > info_.memory_bytes - device_bytes_)) {
    return absl::ResourceExhaustedError(absl::StrCat("allocate ", bytes, " bytes of ",
                                                     is_device ? "device" : "pinned host",
                                                     " memory: cudaErrorMemoryAllocation"));
  }
  const bool mapped = bytes > kLargestHeapAllocation;
  void* memory = nullptr;
  if (mapped) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      return absl::ResourceExhaustedError(absl::StrCat("map ", bytes, " bytes"));
    }
  } else {
    memory = ::operator new(std::max<std::size_t>(bytes, 1), kAlignment);
    std::memset(memory, kPoisonByte, bytes);
  }
  auto* const begin = static_cast<std::byte*>(memory);
  owned[begin] = {.bytes = bytes, .mapped = mapped};
  device_bytes_ += is_device ? bytes : 0;
  return begin;
}

void HostDevice::Free(std::byte* memory, Allocations& owned) {
  const auto found = owned.find(memory);
  BATON_CHECK(found != owned.end());
  // CUDA waits for the whole device before it takes memory away.
  const std::vector<std::shared_ptr<Queue>> queues = queues_;
  for (const std::shared_ptr<Queue>& queue : queues) {
    RunUntil(*queue, nullptr);
  }
  if (&owned == &device_memory_) {
    device_bytes_ -= found->second.bytes;
  }
  if (found->second.mapped) {
    munmap(memory, found->second.bytes);
  } else {
    ::operator delete(memory, kAlignment);
  }
  owned.erase(found);
}

absl::StatusOr<std::byte*> HostDevice::AllocateDevice(std::size_t bytes) {
  absl::MutexLock lock(&mutex_);
  return Allocate(bytes, device_memory_);
}

void HostDevice::FreeDevice(std::byte* memory) {
  absl::MutexLock lock(&mutex_);
  Free(memory, device_memory_);
}

absl::StatusOr<std::byte*> HostDevice::AllocatePinned(std::size_t bytes) {
  absl::MutexLock lock(&mutex_);
  return Allocate(bytes, pinned_memory_);
}

void HostDevice::FreePinned(std::byte* memory) {
  absl::MutexLock lock(&mutex_);
  Free(memory, pinned_memory_);
}

absl::StatusOr<cuda::StreamHandle> HostDevice::CreateStream() {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(CheckUsable());
  queues_.push_back(std::make_shared<Queue>(*this));
  return queues_.back()->handle();
}

void HostDevice::DestroyStream(cuda::StreamHandle stream) {
  absl::MutexLock lock(&mutex_);
  Queue& queue = QueueOf(stream);
  RunUntil(queue, nullptr);
  std::erase_if(queues_, [&queue](const auto& each) { return each.get() == &queue; });
}

absl::Status HostDevice::Synchronize(cuda::StreamHandle stream) {
  absl::MutexLock lock(&mutex_);
  ++counts_.waits;
  if (QueueOf(stream).capture != nullptr) {
    return absl::FailedPreconditionError(
        "synchronize a stream: cudaErrorStreamCaptureUnsupported: it is being captured");
  }
  RunUntil(QueueOf(stream), nullptr);
  return CheckUsable();
}

absl::StatusOr<cuda::EventHandle> HostDevice::CreateEvent() {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(CheckUsable());
  return reinterpret_cast<cuda::EventHandle>(std::make_unique<HostEvent>().release());
}

void HostDevice::DestroyEvent(cuda::EventHandle event) {
  const std::unique_ptr<HostEvent> owned(reinterpret_cast<HostEvent*>(event));
}

absl::Status HostDevice::Record(cuda::EventHandle event, cuda::StreamHandle stream) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(CheckUsable());
  Queue& queue = QueueOf(stream);
  if (queue.capture != nullptr) {
    return absl::UnimplementedError("record an event: not while the stream is being captured");
  }
  auto mark = std::make_shared<Mark>(Mark{.queue = &queue});
  reinterpret_cast<HostEvent*>(event)->mark = mark;
  Put(queue, {.passes = std::move(mark)});
  return absl::OkStatus();
}

absl::Status HostDevice::WaitForEvent(cuda::StreamHandle stream, cuda::EventHandle event) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(CheckUsable());
  Queue& queue = QueueOf(stream);
  if (queue.capture != nullptr) {
    return absl::UnimplementedError("wait for an event: not while the stream is being captured");
  }
  if (const std::shared_ptr<Mark>& mark = reinterpret_cast<HostEvent*>(event)->mark) {
    Put(queue, {.awaits = mark});
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> HostDevice::IsDone(cuda::EventHandle event) {
  absl::MutexLock lock(&mutex_);
  const std::shared_ptr<Mark> mark = reinterpret_cast<HostEvent*>(event)->mark;
  if (mark != nullptr && !mark->passed) {
    RunOne(*mark->queue);
  }
  RETURN_IF_ERROR(CheckUsable());
  return mark == nullptr || mark->passed;
}

absl::Status HostDevice::Synchronize(cuda::EventHandle event) {
  absl::MutexLock lock(&mutex_);
  ++counts_.waits;
  RETURN_IF_ERROR(CheckNotCapturing("synchronize an event"));
  if (const std::shared_ptr<Mark> mark = reinterpret_cast<HostEvent*>(event)->mark;
      mark != nullptr && !mark->passed) {
    RunUntil(*mark->queue, mark.get());
  }
  return CheckUsable();
}

absl::Status HostDevice::CheckRange(const char* what,
                                    const std::byte* memory,
                                    std::size_t bytes,
                                    const Allocations& owned) const {
  const auto after = owned.upper_bound(memory);
  if (after != owned.begin()) {
    const auto& [begin, allocation] = *std::prev(after);
    const auto offset = static_cast<std::size_t>(memory - begin);
    if (offset <= allocation.bytes && bytes <= allocation.bytes - offset) {
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      what, " of ", bytes, " bytes: cudaErrorInvalidValue: not inside one allocation of ",
      &owned == &device_memory_ ? "device" : "pinned host", " memory"));
}

absl::Status HostDevice::Copy(const cuda::AsyncCopy& copy, cuda::StreamHandle stream) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(CheckUsable());
  const bool from_host = copy.direction == CopyDirection::kHostToDevice;
  const bool to_host = copy.direction == CopyDirection::kDeviceToHost;
  RETURN_IF_ERROR(CheckRange("source of a copy", copy.source, copy.bytes,
                             from_host ? pinned_memory_ : device_memory_));
  RETURN_IF_ERROR(CheckRange("destination of a copy", copy.destination, copy.bytes,
                             to_host ? pinned_memory_ : device_memory_));
  Queue& queue = QueueOf(stream);
  // Work queued before may still use the old content.
  const bool poison = queue.capture == nullptr &&
                      (to_host ? !IsReadByQueuedWork(copy.destination, copy.bytes) : IsIdle());
  if (poison && !Overlap(copy.destination, copy.bytes, copy.source, copy.bytes)) {
    for (std::size_t i = 0; i < copy.bytes; ++i) {  // plain stores, which a sanitizer sees
      copy.destination[i] = std::byte{kPoisonByte};
    }
  }
  Put(queue, {.run = [copy] { std::memmove(copy.destination, copy.source, copy.bytes); },
              .copied_bytes = copy.bytes,
              .source = from_host ? copy.source : nullptr,
              .source_bytes = from_host ? copy.bytes : 0});
  ++counts_.copies;
  counts_.copied_bytes += copy.bytes;
  return absl::OkStatus();
}

absl::Status HostDevice::Fill(std::byte* memory,
                              unsigned char value,
                              std::size_t bytes,
                              cuda::StreamHandle stream) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(CheckUsable());
  RETURN_IF_ERROR(CheckRange("fill", memory, bytes, device_memory_));
  const bool mapped = std::prev(device_memory_.upper_bound(memory))->second.mapped;
  Put(QueueOf(stream), {.run = [=] { FillMemory(memory, value, bytes, mapped); }});
  ++counts_.fills;
  return absl::OkStatus();
}

absl::Status HostDevice::BeginCapture(cuda::StreamHandle stream) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(CheckUsable());
  RETURN_IF_ERROR(CheckNotCapturing("begin a capture"));
  QueueOf(stream).capture = std::make_unique<Graph>();
  capturing_thread_ = std::this_thread::get_id();
  return absl::OkStatus();
}

absl::StatusOr<cuda::GraphHandle> HostDevice::EndCapture(cuda::StreamHandle stream) {
  absl::MutexLock lock(&mutex_);
  std::unique_ptr<Graph> graph = std::move(QueueOf(stream).capture);
  if (graph == nullptr) {
    return absl::FailedPreconditionError("end a capture: cudaErrorIllegalState: none was begun");
  }
  capturing_thread_.reset();
  RETURN_IF_ERROR(CheckUsable());
  ++counts_.captures;
  return reinterpret_cast<cuda::GraphHandle>(graph.release());
}

absl::Status HostDevice::LaunchGraph(cuda::GraphHandle graph, cuda::StreamHandle stream) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(CheckUsable());
  ++counts_.graph_launches;
  for (const Work& work : reinterpret_cast<const Graph*>(graph)->work) {
    counts_.copies += work.copied_bytes > 0 ? 1 : 0;
    counts_.copied_bytes += work.copied_bytes;
    Put(QueueOf(stream), work);
  }
  return absl::OkStatus();
}

void HostDevice::DestroyGraph(cuda::GraphHandle graph) {
  const std::unique_ptr<Graph> owned(reinterpret_cast<Graph*>(graph));
}

absl::Status HostDevice::ToStatus(cuda::LaunchCode code, const char* what) const {
  if (code == 0) {
    return LastError();
  }
  return absl::InternalError(absl::StrCat("launch ", what, ": ", NameOf(code), " (", code, ")"));
}

absl::Status HostDevice::LastError() const {
  absl::MutexLock lock(&mutex_);
  return error_;
}

bool HostDevice::IsReadByQueuedWork(const std::byte* memory, std::size_t bytes) const {
  return std::ranges::any_of(queues_, [&](const auto& queue) {
    return queue->busy || std::ranges::any_of(queue->work, [&](const Work& work) {
             return work.source != nullptr &&
                    Overlap(memory, bytes, work.source, work.source_bytes);
           });
  });
}

bool HostDevice::IsIdle() const {
  return std::ranges::all_of(queues_,
                             [](const auto& queue) { return queue->work.empty() && !queue->busy; });
}

void HostDevice::Put(Queue& queue, Work work) {
  if (queue.capture != nullptr) {
    queue.capture->work.push_back(std::move(work));
  } else {
    queue.work.push_back(std::move(work));
  }
}

void HostDevice::RunUntil(Queue& queue, const Mark* mark) {
  while (mark == nullptr ? !queue.work.empty() || queue.busy : !mark->passed) {
    if (queue.busy) {
      progress_.Wait(&mutex_);
      continue;
    }
    BATON_CHECK(!queue.work.empty());
    if (const std::shared_ptr<Mark> awaited = queue.work.front().awaits;
        awaited != nullptr && !awaited->passed) {
      RunUntil(*awaited->queue, awaited.get());
    } else {
      RunFront(queue);
    }
  }
}

void HostDevice::RunOne(Queue& queue) {
  if (queue.busy || queue.work.empty()) {
    return;
  }
  if (const std::shared_ptr<Mark>& awaited = queue.work.front().awaits;
      awaited != nullptr && !awaited->passed) {
    RunOne(*awaited->queue);
    return;
  }
  RunFront(queue);
}

void HostDevice::RunFront(Queue& queue) {
  const Work work = std::move(queue.work.front());
  queue.work.pop_front();
  if (work.run != nullptr && error_.ok()) {
    std::optional<std::string> failure = std::exchange(failing_work_, std::nullopt);
    queue.busy = true;
    mutex_.Unlock();
    if (!failure.has_value()) {
      work.run();
      if (std::string message = TakeKernelError(); !message.empty()) {
        failure = std::move(message);
      }
    }
    mutex_.Lock();
    queue.busy = false;
    if (failure.has_value() && error_.ok()) {
      error_ = absl::InternalError(
          absl::StrCat("the device is lost: cudaErrorLaunchFailure: ", *failure));
    }
  }
  if (work.passes != nullptr) {
    work.passes->passed = true;
  }
  progress_.SignalAll();
}

}  // namespace baton::emulated

absl::StatusOr<std::unique_ptr<baton::cuda::Device>> baton::OpenEmulatedGpu() {
  return std::make_unique<emulated::HostDevice>();
}
