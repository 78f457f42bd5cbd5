#include "tests/emulation/runtime.h"

#include <memory>
#include <mutex>
#include <utility>

#include "tests/emulation/block_runner.h"

namespace baton::emulated {

constinit thread_local ThreadView* current_thread = nullptr;

namespace {

constexpr int kInvalidValue = 1;          // cudaErrorInvalidValue
constexpr int kInvalidConfiguration = 9;  // cudaErrorInvalidConfiguration

struct ErrorRecord {
  std::mutex mutex;
  std::string first;
};

ErrorRecord& Errors() {
  static ErrorRecord record;
  return record;
}

// Of the kernel that this OS thread is running; saves the check that a thread_local object costs at
// every use.
constinit thread_local BlockRunner* active_runner = nullptr;

// Held while a grid runs.
std::mutex& GridMutex() {
  static std::mutex mutex;
  return mutex;
}

// Fibers belong to the thread that made them.
BlockRunner& RunnerOfThisThread() {
  static thread_local const auto runner = std::make_unique<BlockRunner>();
  return *runner;
}

}  // namespace

void RecordError(const std::string& message) {
  const std::lock_guard lock(Errors().mutex);
  if (Errors().first.empty()) {
    Errors().first = message;
  }
}

int CheckLaunch(dim3 grid, dim3 block, std::size_t dynamic_shared_bytes) {
  constexpr std::uint64_t kMaxGridX = 0x7fffffff;
  constexpr std::uint64_t kMaxGridYz = 65535;
  const bool grid_fits = grid.x >= 1 && grid.y >= 1 && grid.z >= 1 && grid.x <= kMaxGridX &&
                         grid.y <= kMaxGridYz && grid.z <= kMaxGridYz;
  const auto threads = static_cast<std::uint64_t>(block.x) * block.y * block.z;
  const bool block_fits = threads >= 1 && block.x <= 1024 && block.y <= 1024 && block.z <= 64 &&
                          threads <= kMaxBlockThreads;
  if (!grid_fits || !block_fits) {
    return kInvalidConfiguration;
  }
  return dynamic_shared_bytes <= kMaxDynamicSharedBytes ? 0 : kInvalidValue;
}

int RunGrid(dim3 grid,
            dim3 block,
            std::size_t dynamic_shared_bytes,
            void (*body)(const void*),
            const void* context) {
  const int code = CheckLaunch(grid, block, dynamic_shared_bytes);
  if (code == 0) {
    const std::lock_guard lock(GridMutex());
    active_runner = &RunnerOfThisThread();
    active_runner->Run({grid, block, dynamic_shared_bytes, body, context});
    active_runner = nullptr;
  }
  return code;
}

std::string TakeKernelError() {
  const std::lock_guard lock(Errors().mutex);
  return std::exchange(Errors().first, std::string());
}

void FailKernel(const char* message) {
  RecordError(active_runner->ThreadName() + ": " + message);
  active_runner->Stop();
}

int BlockBarrier(bool vote, const std::source_location& where) {
  return active_runner->Barrier(vote, where);
}

void WarpCollective(std::uint32_t mask,
                    Complete complete,
                    void* operand,
                    const std::source_location& where) {
  active_runner->Collective(mask, complete, operand, where);
}

void WarpBarrier(std::uint32_t mask, const std::source_location& where) {
  active_runner->OrderedWarpBarrier(mask, where);
}

void IssueAsyncCopy(const AsyncCopy& copy) {
  CudaThread& thread = active_runner->running();
  thread.copies.push_back({copy, thread.open_group});
}

void CommitAsyncCopies() {
  ++active_runner->running().open_group;
}

bool NextAsyncCopy(int kept_groups, AsyncCopy* copy) {
  CudaThread& thread = active_runner->running();
  if (thread.copies.empty()) {
    return false;
  }
  const PendingCopy& oldest = thread.copies.front();
  if (oldest.group + static_cast<std::uint64_t>(kept_groups) >= thread.open_group) {
    return false;
  }
  *copy = oldest.copy;
  thread.copies.pop_front();
  return true;
}

}  // namespace baton::emulated
