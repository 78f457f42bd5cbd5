#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace baton {

// Runs a loop on a fixed number of threads, the caller's own among them.
//
// Threads wait for work by a short spin, since operations follow each other within microseconds,
// and then sleep: an idle worker costs nothing, and threads that share a core do not starve each
// other. With one thread there is no other thread and no atomic.
//
// Not thread-safe: ParallelFor is called by one thread at a time, and not from inside itself.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls body(index, thread) for every index in [0, count), thread in [0, threads()); returns when
  // all are done. Which thread gets which index is not defined.
  void ParallelFor(int count, absl::FunctionRef<void(int index, int thread)> body);

 private:
  struct Loop;

  void Help(int thread);
  static void RunShare(Loop& loop, int thread);

  Loop* loop_ = nullptr;                       // written before generation_ moves; nullptr: stop
  std::atomic<std::uint32_t> generation_ = 0;  // moves once for each loop
  std::atomic<int> busy_helpers_ = 0;
  std::vector<std::jthread> helpers_;
};

}  // namespace baton
