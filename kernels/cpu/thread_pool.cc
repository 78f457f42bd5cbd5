#include "kernels/cpu/thread_pool.h"

#include "common/check.h"

namespace baton {
namespace {

// About 50 microseconds: longer than the gaps between the operations of a step, shorter than a
// scheduler's slice.
constexpr int kSpins = 1000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns when `value` is no longer `old`: spins, then sleeps.
template <typename T>
void WaitWhile(const std::atomic<T>& value, T old) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (value.load(std::memory_order_acquire) != old) {
      return;
    }
    Pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

struct ThreadPool::Loop {
  int count;
  absl::FunctionRef<void(int, int)> body;
  std::atomic<int> next = 0;
};

ThreadPool::ThreadPool(int threads) {
  BATON_CHECK(threads >= 1);
  for (int i = 1; i < threads; ++i) {
    helpers_.emplace_back([this, i] { Help(i); });
  }
}

ThreadPool::~ThreadPool() {
  loop_ = nullptr;
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  helpers_.clear();  // joins
}

void ThreadPool::RunShare(Loop& loop, int thread) {
  // Relaxed: the loop's fields were published with generation_, and results are published with
  // busy_helpers_.
  for (int i = loop.next.fetch_add(1, std::memory_order_relaxed); i < loop.count;
       i = loop.next.fetch_add(1, std::memory_order_relaxed)) {
    loop.body(i, thread);
  }
}

void ThreadPool::ParallelFor(int count, absl::FunctionRef<void(int, int)> body) {
  if (helpers_.empty() || count <= 1) {
    for (int i = 0; i < count; ++i) {
      body(i, 0);
    }
    return;
  }
  Loop loop{.count = count, .body = body};
  loop_ = &loop;
  busy_helpers_.store(static_cast<int>(helpers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  RunShare(loop, 0);
  // `loop` lives on this stack: leave only when no helper can look at it any more.
  for (int busy = busy_helpers_.load(std::memory_order_acquire); busy != 0;
       busy = busy_helpers_.load(std::memory_order_acquire)) {
    WaitWhile(busy_helpers_, busy);
  }
}

void ThreadPool::Help(int thread) {
  for (std::uint32_t seen = 0;;) {
    WaitWhile(generation_, seen);
    seen = generation_.load(std::memory_order_acquire);
    Loop* loop = loop_;
    if (loop == nullptr) {
      return;
    }
    RunShare(*loop, thread);
    if (busy_helpers_.fetch_sub(1, std::memory_order_release) == 1) {
      busy_helpers_.notify_all();
    }
  }
}

}  // namespace baton
