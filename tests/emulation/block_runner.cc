#include "tests/emulation/block_runner.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>

#include "tests/emulation/sanitizer_hooks.h"

namespace baton::emulated {
namespace {

constexpr std::size_t kCanaryBytes = 64;  // after dynamic shared memory

void EnterThread(void* thread) {
  static_cast<CudaThread*>(thread)->runner->ThreadMain();
}

}  // namespace

CudaThread::CudaThread(BlockRunner* its_runner, int its_number)
    : runner(its_runner), number(its_number), fiber(&EnterThread, this) {}

void BlockRunner::Run(const Grid& grid) {
  grid_ = &grid;
  if (main_ == nullptr) {
    main_ = std::make_unique<Fiber>();
  }
  thread_count_ = static_cast<int>(grid.block.x * grid.block.y * grid.block.z);
  while (static_cast<int>(threads_.size()) < thread_count_) {
    threads_.push_back(std::make_unique<CudaThread>(this, static_cast<int>(threads_.size())));
  }
  const std::align_val_t alignment{128};
  shared_ = static_cast<std::byte*>(operator new(grid.shared_bytes + kCanaryBytes, alignment));

  bool going = true;
  bool falling = false;
  for (unsigned z = 0; going && z < grid.grid.z; ++z) {
    for (unsigned y = 0; going && y < grid.grid.y; ++y) {
      for (unsigned x = 0; going && x < grid.grid.x; ++x) {
        going = RunBlock({x, y, z}, falling);
        falling = !falling;
      }
    }
  }
  if (UnderAddressSanitizer()) {
    __asan_unpoison_memory_region(shared_ + grid.shared_bytes, kCanaryBytes);
  }
  operator delete(shared_, alignment);
  grid_ = nullptr;
}

bool BlockRunner::RunBlock(uint3 index, bool falling) {
  falling_ = falling;
  StartThreads(index);
  CudaThread* const first = NextReady(-1, -1);
  running_ = first;
  current_thread = &first->view;
  WarpOf(*first).ready &= ~(1u << first->view.lane);
  Fiber::Switch(*main_, first->fiber);
  if (aborted_) {
    StopOthers();
  }
  running_ = nullptr;
  current_thread = nullptr;
  Acquire(&block_end_order_);
  const bool whole = !aborted_ && CheckCanary(index);
  if (aborted_) {
    threads_.clear();  // their stacks ended in the middle
    aborted_ = false;
  }
  return whole;
}

// What threads did before the launch was stopped happens before what the host does next: each has
// to say so itself.
void BlockRunner::StopOthers() {
  if (!UnderThreadSanitizer()) {
    return;
  }
  for (int i = 0; i < thread_count_; ++i) {
    CudaThread& thread = *threads_[static_cast<std::size_t>(i)];
    if (thread.state != State::kEnded) {
      running_ = &thread;
      Fiber::Switch(*main_, thread.fiber);
    }
  }
}

void BlockRunner::StartThreads(uint3 index) {
  if (UnderAddressSanitizer()) {
    __asan_unpoison_memory_region(shared_ + grid_->shared_bytes, kCanaryBytes);
  }
  std::memset(shared_, 0xff, grid_->shared_bytes + kCanaryBytes);
  if (UnderAddressSanitizer()) {
    __asan_poison_memory_region(shared_ + grid_->shared_bytes, kCanaryBytes);
  }
  for (Warp& warp : warps_) {
    warp.live = 0;
    warp.ready = 0;
    warp.open_meetings = 0;
  }
  ready_warps_ = 0;
  ended_ = 0;
  at_barrier_ = 0;
  votes_ = 0;
  const dim3 size = grid_->block;
  for (int i = 0; i < thread_count_; ++i) {
    CudaThread& thread = *threads_[static_cast<std::size_t>(i)];
    const auto number = static_cast<unsigned>(i);
    thread.view.thread_index = {number % size.x, number / size.x % size.y,
                                number / size.x / size.y};
    thread.view.block_index = index;
    thread.view.block_size = size;
    thread.view.grid_size = grid_->grid;
    thread.view.lane = i % kWarpLanes;
    thread.view.dynamic_shared = shared_;
    thread.copies.clear();
    thread.open_group = 0;
    WarpOf(thread).live |= 1u << thread.view.lane;
    MakeReady(thread);
  }
  Release(&block_start_order_);
}

bool BlockRunner::CheckCanary(uint3 index) const {
  if (UnderAddressSanitizer()) {
    return true;  // it has reported the write itself
  }
  const std::byte* const canary = shared_ + grid_->shared_bytes;
  if (std::count(canary, canary + kCanaryBytes, std::byte{0xff}) == kCanaryBytes) {
    return true;
  }
  RecordError("block " + Triple(index) + " wrote past its " + std::to_string(grid_->shared_bytes) +
              " bytes of dynamic shared memory");
  return false;
}

void BlockRunner::ThreadMain() {
  while (true) {
    Acquire(&block_start_order_);
    if (aborted_) {
      Stop();
    }
    grid_->body(grid_->context);
    Release(&block_end_order_);
    ++ended_;
    EndLane();
    Leave(State::kEnded, {});
  }
}

void BlockRunner::MakeReady(CudaThread& thread) {
  thread.state = State::kReady;
  WarpOf(thread).ready |= 1u << thread.view.lane;
  ready_warps_ |= 1u << (thread.number / kWarpLanes);
}

// The next lane of this warp; if none can go on, the first of the first warp that can.
CudaThread* BlockRunner::NextReady(int after_lane, int warp) {
  if (warp < 0 || warps_[static_cast<std::size_t>(warp)].ready == 0) {
    if (warp >= 0) {
      ready_warps_ &= ~(1u << warp);
    }
    if (ready_warps_ == 0) {
      return nullptr;
    }
    warp = falling_ ? 31 - std::countl_zero(ready_warps_) : std::countr_zero(ready_warps_);
    after_lane = -1;
  }
  const std::uint32_t ready = warps_[static_cast<std::size_t>(warp)].ready;
  const std::uint32_t later = after_lane >= 31 ? 0 : ready & (0xffffffffu << (after_lane + 1));
  const int lane = std::countr_zero(later != 0 ? later : ready);
  return threads_[static_cast<std::size_t>(warp * kWarpLanes + lane)].get();
}

void BlockRunner::SwitchTo(CudaThread& next) {
  CudaThread& from = *running_;
  WarpOf(next).ready &= ~(1u << next.view.lane);
  running_ = &next;
  current_thread = &next.view;
  Fiber::Switch(from.fiber, next.fiber);
  if (aborted_) {
    Stop();
  }
}

// The running thread waits, or has ended: others go on. Returns when it was made ready and its turn
// has come.
void BlockRunner::Leave(State state, const std::source_location& where) {
  CudaThread& self = *running_;
  self.state = state;
  self.waits_at = where;
  CudaThread* const next = NextReady(self.view.lane, self.number / kWarpLanes);
  if (next != nullptr) {
    SwitchTo(*next);
    return;
  }
  if (ended_ != thread_count_) {
    RecordError(StuckMessage());
    Stop();
  }
  Fiber::Switch(self.fiber, *main_);
}

void BlockRunner::Stop() {
  aborted_ = true;
  running_->state = State::kEnded;
  Release(&block_end_order_);
  Fiber::Switch(running_->fiber, *main_);
  std::abort();  // a stopped fiber is never switched to
}

}  // namespace baton::emulated
