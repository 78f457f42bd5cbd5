#include "tests/emulation/runtime.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/emulation/fiber.h"
#include "tests/emulation/sanitizer_hooks.h"

namespace baton::emulated {

constinit thread_local ThreadView* current_thread = nullptr;

namespace {

constexpr int kInvalidValue = 1;          // cudaErrorInvalidValue
constexpr int kInvalidConfiguration = 9;  // cudaErrorInvalidConfiguration
constexpr std::size_t kCanaryBytes = 64;  // after dynamic shared memory
constexpr int kMaxWarps = kMaxBlockThreads / kWarpLanes;

enum class State : std::uint8_t { kReady, kAtBarrier, kAtWarpOperation, kEnded };

class BlockRunner;

struct PendingCopy {
  AsyncCopy copy;
  std::uint64_t group = 0;
};

// One CUDA thread. Its fiber is used again by the next block.
struct Thread {
  explicit Thread(BlockRunner* its_runner, int its_number);

  ThreadView view;
  BlockRunner* const runner;
  const int number;  // in the block
  State state = State::kReady;
  std::source_location waits_at;
  std::deque<PendingCopy> copies;
  std::uint64_t open_group = 0;
  Fiber fiber;
};

// A warp operation that some lanes of its mask have reached.
struct Meeting {
  std::uint32_t mask = 0;
  std::uint32_t arrived = 0;
  Complete complete = nullptr;
};

struct Warp {
  std::uint32_t live = 0;   // lanes that have not ended
  std::uint32_t ready = 0;  // lanes that could go on and are not running
  std::vector<Meeting> meetings;
  void* operands[kWarpLanes] = {};
  // Objects of ThreadSanitizer's order, see BlockRunner::barrier_order_. By the first lane of the
  // mask.
  char order[2][kWarpLanes] = {};
  std::uint8_t phase[kWarpLanes] = {};
};

struct Grid {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  void (*body)(const void*) = nullptr;
  const void* context = nullptr;
};

struct ErrorRecord {
  std::mutex mutex;
  std::string first;
};

ErrorRecord& Errors() {
  static ErrorRecord record;
  return record;
}

void RecordError(const std::string& message) {
  const std::lock_guard lock(Errors().mutex);
  if (Errors().first.empty()) {
    Errors().first = message;
  }
}

// Runs the blocks of an OS thread's launches.
class BlockRunner {
 public:
  void Run(const Grid& grid);
  int Barrier(bool vote, const std::source_location& where);
  void Collective(std::uint32_t mask,
                  Complete complete,
                  void* operand,
                  const std::source_location& where);
  void Finish(const Meeting& meeting);
  void EndLane();
  void OrderedWarpBarrier(std::uint32_t mask, const std::source_location& where);
  // Ends the launch; an error has been recorded. Nothing on the fibers' stacks is destroyed.
  [[noreturn]] void Stop();
  [[noreturn]] void ThreadMain();
  Thread& running() { return *running_; }
  std::string ThreadName() const;

 private:
  bool RunBlock(uint3 index, bool falling);
  void StartThreads(uint3 index);
  void StopOthers();
  bool CheckCanary(uint3 index) const;
  void SwitchTo(Thread& next);
  void Leave(State state, const std::source_location& where);
  void MakeReady(Thread& thread);
  Thread* NextReady(int after_lane, int warp);
  std::string StuckMessage() const;
  std::string BlockName() const;
  Warp& WarpOf(const Thread& thread) {
    return warps_[static_cast<std::size_t>(thread.number / kWarpLanes)];
  }

  const Grid* grid_ = nullptr;
  std::unique_ptr<Fiber> main_;
  std::vector<std::unique_ptr<Thread>> threads_;  // as many as the largest block so far
  int thread_count_ = 0;                          // of this block
  int ended_ = 0;
  std::array<Warp, kMaxWarps> warps_;
  std::uint32_t ready_warps_ = 0;
  bool falling_ = false;  // order of the warps
  Thread* running_ = nullptr;
  bool aborted_ = false;

  int at_barrier_ = 0;
  int votes_ = 0;
  int vote_result_ = 0;
  // Two objects in turn: with one, what a fast thread releases at the next barrier would reach a
  // slow thread that is still acquiring this one, and hide that the slow one's reads race with the
  // fast one's writes.
  char barrier_order_[2] = {};
  unsigned barrier_phase_ = 0;
  char block_start_order_ = 0;
  char block_end_order_ = 0;

  std::byte* shared_ = nullptr;
};

void EnterThread(void* thread) {
  static_cast<Thread*>(thread)->runner->ThreadMain();
}

Thread::Thread(BlockRunner* its_runner, int its_number)
    : runner(its_runner), number(its_number), fiber(&EnterThread, this) {}

// Of the kernel that this OS thread is running; saves the check that a thread_local object costs at
// every use.
constinit thread_local BlockRunner* active_runner = nullptr;

BlockRunner& RunnerOfThisThread() {
  static thread_local BlockRunner runner;
  return runner;
}

std::string Triple(uint3 value) {
  return "(" + std::to_string(value.x) + ", " + std::to_string(value.y) + ", " +
         std::to_string(value.z) + ")";
}

std::string Place(const std::source_location& where) {
  return std::string(where.file_name()) + ":" + std::to_string(where.line());
}

bool SamePlace(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         std::strcmp(a.file_name(), b.file_name()) == 0;
}

void BlockRunner::Run(const Grid& grid) {
  grid_ = &grid;
  if (main_ == nullptr) {
    main_ = std::make_unique<Fiber>();
  }
  thread_count_ = static_cast<int>(grid.block.x * grid.block.y * grid.block.z);
  while (static_cast<int>(threads_.size()) < thread_count_) {
    threads_.push_back(std::make_unique<Thread>(this, static_cast<int>(threads_.size())));
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
  Thread* const first = NextReady(-1, -1);
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
    Thread& thread = *threads_[static_cast<std::size_t>(i)];
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
    warp.meetings.clear();
  }
  ready_warps_ = 0;
  ended_ = 0;
  at_barrier_ = 0;
  votes_ = 0;
  const dim3 size = grid_->block;
  for (int i = 0; i < thread_count_; ++i) {
    Thread& thread = *threads_[static_cast<std::size_t>(i)];
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

void BlockRunner::MakeReady(Thread& thread) {
  thread.state = State::kReady;
  WarpOf(thread).ready |= 1u << thread.view.lane;
  ready_warps_ |= 1u << (thread.number / kWarpLanes);
}

// The next lane of this warp; if none can go on, the first of the first warp that can.
Thread* BlockRunner::NextReady(int after_lane, int warp) {
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

void BlockRunner::SwitchTo(Thread& next) {
  Thread& from = *running_;
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
  Thread& self = *running_;
  self.state = state;
  self.waits_at = where;
  Thread* const next = NextReady(self.view.lane, self.number / kWarpLanes);
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

int BlockRunner::Barrier(bool vote, const std::source_location& where) {
  Thread& self = *running_;
  char* const order = &barrier_order_[barrier_phase_ % 2];
  Release(order);
  votes_ += vote ? 1 : 0;
  ++at_barrier_;
  if (at_barrier_ < thread_count_) {
    Leave(State::kAtBarrier, where);
  } else {
    self.state = State::kAtBarrier;
    self.waits_at = where;
    for (int i = 0; i < thread_count_; ++i) {
      if (!SamePlace(threads_[static_cast<std::size_t>(i)]->waits_at, where)) {
        RecordError(StuckMessage());
        Stop();
      }
    }
    vote_result_ = votes_;
    votes_ = 0;
    at_barrier_ = 0;
    ++barrier_phase_;
    for (int i = 0; i < thread_count_; ++i) {
      MakeReady(*threads_[static_cast<std::size_t>(i)]);
    }
    Thread* const first = NextReady(-1, -1);
    if (first != &self) {
      SwitchTo(*first);
    } else {
      WarpOf(self).ready &= ~(1u << self.view.lane);
    }
  }
  Acquire(order);
  return vote_result_;
}

void BlockRunner::Collective(std::uint32_t mask,
                             Complete complete,
                             void* operand,
                             const std::source_location& where) {
  Thread& self = *running_;
  const std::uint32_t bit = 1u << self.view.lane;
  if ((mask & bit) == 0) {
    RecordError(ThreadName() + ": the lane is not in its own mask at " + Place(where));
    Stop();
  }
  Warp& warp = WarpOf(self);
  auto meeting = std::find_if(warp.meetings.begin(), warp.meetings.end(),
                              [mask](const Meeting& open) { return open.mask == mask; });
  if (meeting == warp.meetings.end()) {
    warp.meetings.push_back({mask, 0, complete});
    meeting = warp.meetings.end() - 1;
  }
  if (meeting->complete != complete) {
    RecordError(ThreadName() + ": other lanes of the mask are at another warp operation than " +
                Place(where));
    Stop();
  }
  warp.operands[self.view.lane] = operand;
  meeting->arrived |= bit;
  if (meeting->arrived != (mask & warp.live)) {
    Leave(State::kAtWarpOperation, where);
    return;
  }
  const Meeting whole = *meeting;
  warp.meetings.erase(meeting);
  Finish(whole);
  warp.ready &= ~bit;  // it goes on at once
}

// All have come. Makes them ready.
void BlockRunner::Finish(const Meeting& meeting) {
  Warp& warp = WarpOf(*running_);
  meeting.complete(warp.operands, meeting.arrived);
  const int first = running_->number - running_->view.lane;
  for (std::uint32_t lanes = meeting.arrived; lanes != 0; lanes &= lanes - 1) {
    MakeReady(*threads_[static_cast<std::size_t>(first + std::countr_zero(lanes))]);
  }
}

// The running thread was the last that others of its warp waited for.
void BlockRunner::EndLane() {
  Warp& warp = WarpOf(*running_);
  warp.live &= ~(1u << running_->view.lane);
  for (std::size_t i = 0; i < warp.meetings.size();) {
    const Meeting meeting = warp.meetings[i];
    if (meeting.arrived != (meeting.mask & warp.live)) {
      ++i;
      continue;
    }
    warp.meetings.erase(warp.meetings.begin() + static_cast<std::ptrdiff_t>(i));
    Finish(meeting);
  }
}

void BlockRunner::OrderedWarpBarrier(std::uint32_t mask, const std::source_location& where) {
  Warp& warp = WarpOf(*running_);
  const auto key = static_cast<std::size_t>(std::countr_zero(mask | 0x80000000u));
  char* const order = &warp.order[warp.phase[key] % 2][key];
  Release(order);
  // The phase moves on when all have come, before any lane goes on.
  Collective(
      mask,
      [](void* const* operands, std::uint32_t lanes) {
        ++*static_cast<std::uint8_t*>(operands[std::countr_zero(lanes)]);
      },
      &warp.phase[key], where);
  Acquire(order);
}

std::string BlockRunner::BlockName() const {
  return "block " + Triple(running_->view.block_index);
}

std::string BlockRunner::ThreadName() const {
  return BlockName() + " thread " + Triple(running_->view.thread_index);
}

std::string BlockRunner::StuckMessage() const {
  struct Group {
    std::string what;
    int threads = 0;
  };
  std::vector<Group> groups;
  for (int i = 0; i < thread_count_; ++i) {
    const Thread& thread = *threads_[static_cast<std::size_t>(i)];
    std::string what = "could go on";
    if (thread.state == State::kEnded) {
      what = "have ended";
    } else if (thread.state == State::kAtBarrier) {
      what = "at the barrier " + Place(thread.waits_at);
    } else if (thread.state == State::kAtWarpOperation) {
      what = "at the warp operation " + Place(thread.waits_at);
    }
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&what](const Group& g) { return g.what == what; });
    if (group == groups.end()) {
      groups.push_back({what, 0});
      group = groups.end() - 1;
    }
    ++group->threads;
  }
  std::string message = "divergent threads in " + BlockName() + ":";
  for (const Group& group : groups) {
    message +=
        (&group == groups.data() ? " " : ", ") + std::to_string(group.threads) + " " + group.what;
  }
  return message;
}

}  // namespace

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
  Thread& thread = active_runner->running();
  thread.copies.push_back({copy, thread.open_group});
}

void CommitAsyncCopies() {
  ++active_runner->running().open_group;
}

bool NextAsyncCopy(int kept_groups, AsyncCopy* copy) {
  Thread& thread = active_runner->running();
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
