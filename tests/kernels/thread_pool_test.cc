#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace baton {
namespace {

TEST(ThreadPool, RunsEveryIndexOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.threads(), threads);
    for (const int count : {0, 1, 2, 7, 100}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
      std::atomic<bool> bad_thread = false;
      pool.ParallelFor(count, [&](int index, int thread) {
        runs[static_cast<std::size_t>(index)].fetch_add(1, std::memory_order_relaxed);
        bad_thread = bad_thread || thread < 0 || thread >= threads;
      });
      for (const std::atomic<int>& run : runs) {
        ASSERT_EQ(run.load(), 1) << threads << " threads, " << count << " indices";
      }
      ASSERT_FALSE(bad_thread);
    }
  }
}

// What one loop wrote, the next may read on any thread.
TEST(ThreadPool, LoopsFollowEachOther) {
  ThreadPool pool(3);
  std::vector<int> values(50, 0);
  for (int round = 0; round < 2000; ++round) {
    pool.ParallelFor(50, [&](int index, int) {
      int& value = values[static_cast<std::size_t>(49 - index)];
      value = value == round ? round + 1 : -1;
    });
  }
  EXPECT_EQ(values, std::vector<int>(50, 2000));
}

TEST(ThreadPool, StopsWithoutWork) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(4);
  }
}

}  // namespace
}  // namespace baton
