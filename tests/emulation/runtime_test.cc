#include "tests/emulation/runtime.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <functional>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/launch.cuh"

// The emulator keeps CUDA's rules for threads: what a kernel may rely on holds, what it may not is
// found.
namespace baton::BATON_CUDA_NAMESPACE {
namespace {

using emulated::TakeKernelError;

constexpr unsigned kAllLanes = 0xffffffffu;

void ExpectNoKernelError() {
  EXPECT_EQ(TakeKernelError(), "");
}

// --- indices

__global__ void WriteIndices(uint3* threads, uint3* blocks) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned at = block * blockDim.x * blockDim.y * blockDim.z + thread;
  threads[at] = threadIdx;
  blocks[at] = blockIdx;
}

TEST(Runtime, EveryThreadOfEveryBlockRunsOnceWithItsOwnIndices) {
  const dim3 grid(3, 2, 2);
  const dim3 block(5, 3, 4);
  std::vector<uint3> threads(12 * 60, uint3{99, 99, 99});
  std::vector<uint3> blocks(12 * 60, uint3{99, 99, 99});

  ASSERT_EQ(Launch(&WriteIndices, grid, block, 0, nullptr, threads.data(), blocks.data()), 0);

  std::size_t at = 0;
  for (unsigned b = 0; b < 12; ++b) {
    for (unsigned t = 0; t < 60; ++t, ++at) {
      ASSERT_EQ(threads[at].x, t % 5);
      ASSERT_EQ(threads[at].y, t / 5 % 3);
      ASSERT_EQ(threads[at].z, t / 15);
      ASSERT_EQ(blocks[at].x, b % 3);
      ASSERT_EQ(blocks[at].y, b / 3 % 2);
      ASSERT_EQ(blocks[at].z, b / 6);
    }
  }
  ExpectNoKernelError();
}

// --- barriers

// Each round reverses an array in shared memory, which needs every other thread's write of the
// round before.
__global__ void ReverseInRounds(int* values, int rounds) {
  int* const shared = DynamicShared<int>();
  shared[threadIdx.x] = values[blockIdx.x * blockDim.x + threadIdx.x];
  for (int round = 0; round < rounds; ++round) {
    __syncthreads();
    const int mirrored = shared[blockDim.x - 1 - threadIdx.x];
    __syncthreads();  // all have read
    shared[threadIdx.x] = mirrored + 1;
  }
  values[blockIdx.x * blockDim.x + threadIdx.x] = shared[threadIdx.x];
}

TEST(Runtime, BarriersInALoopSeparateTheRoundsOfEveryBlock) {
  for (const unsigned threads : {1u, 15u, 32u, 33u, 127u, 1024u}) {
    constexpr int kRounds = 5;
    constexpr unsigned kBlocks = 4;
    std::vector<int> values(kBlocks * threads);
    std::iota(values.begin(), values.end(), 0);

    ASSERT_EQ(Launch(&ReverseInRounds, dim3(kBlocks), dim3(threads), threads * sizeof(int), nullptr,
                     values.data(), kRounds),
              0);

    for (unsigned b = 0; b < kBlocks; ++b) {
      for (unsigned t = 0; t < threads; ++t) {
        ASSERT_EQ(values[b * threads + t],
                  static_cast<int>(b * threads + threads - 1 - t) + kRounds);
      }
    }
    ExpectNoKernelError();
  }
}

// --- warps

__global__ void SumByShuffles(const float* values, float* sums) {
  float sum = values[blockIdx.x * blockDim.x + threadIdx.x];
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  }
  sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

TEST(Runtime, ButterflyOfShufflesGivesEveryLaneTheSum) {
  constexpr unsigned kThreads = 96;
  std::vector<float> values(2 * kThreads);
  std::iota(values.begin(), values.end(), 1.0f);
  std::vector<float> sums(values.size());

  ASSERT_EQ(Launch(&SumByShuffles, dim3(2), dim3(kThreads), 0, nullptr, values.data(), sums.data()),
            0);

  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t first = i / 32 * 32;
    EXPECT_EQ(sums[i], std::accumulate(&values[first], &values[first] + 32, 0.0f));
  }
  ExpectNoKernelError();
}

struct LaneResults {
  int up[32];
  int down[32];
  int from_group[32];
  int exchanged[32];
  unsigned ballot[32];
  int any[32];
  int all[32];
  unsigned same[32];
};

__global__ void UseLanes(LaneResults* results) {
  const int lane = static_cast<int>(threadIdx.x);
  results->up[lane] = __shfl_up_sync(kAllLanes, lane, 3, 16);
  results->down[lane] = __shfl_down_sync(kAllLanes, lane, 5, 8);
  results->from_group[lane] = __shfl_sync(kAllLanes, lane, 6, 4);
  results->exchanged[lane] = __shfl_xor_sync(kAllLanes, lane, 9);
  results->ballot[lane] = __ballot_sync(kAllLanes, lane % 3 == 0);
  results->any[lane] = __any_sync(kAllLanes, lane == 31);
  results->all[lane] = __all_sync(kAllLanes, lane < 31);
  results->same[lane] = __match_any_sync(kAllLanes, lane / 4);
}

TEST(Runtime, ShufflesAndVotesGiveWhatCudaDefines) {
  LaneResults results;

  ASSERT_EQ(Launch(&UseLanes, dim3(1), dim3(32), 0, nullptr, &results), 0);

  unsigned thirds = 0;
  for (int lane = 0; lane < 32; lane += 3) {
    thirds |= 1u << lane;
  }
  for (int lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(results.up[lane], lane % 16 >= 3 ? lane - 3 : lane);
    EXPECT_EQ(results.down[lane], lane % 8 < 3 ? lane + 5 : lane);
    EXPECT_EQ(results.from_group[lane], lane / 4 * 4 + 2);
    EXPECT_EQ(results.exchanged[lane], lane ^ 9);
    EXPECT_EQ(results.ballot[lane], thirds);
    EXPECT_EQ(results.any[lane], 1);
    EXPECT_EQ(results.all[lane], 0);
    EXPECT_EQ(results.same[lane], 0xfu << (lane / 4 * 4));
  }
  ExpectNoKernelError();
}

struct Reductions {
  unsigned sum, least, most, both, either, odd;
  int least_signed, most_signed;
};

__global__ void Reduce(const unsigned* values, Reductions* results) {
  const unsigned value = values[threadIdx.x];
  const Reductions mine = {__reduce_add_sync(kAllLanes, value),
                           __reduce_min_sync(kAllLanes, value),
                           __reduce_max_sync(kAllLanes, value),
                           __reduce_and_sync(kAllLanes, value),
                           __reduce_or_sync(kAllLanes, value),
                           __reduce_xor_sync(kAllLanes, value),
                           __reduce_min_sync(kAllLanes, static_cast<int>(value)),
                           __reduce_max_sync(kAllLanes, static_cast<int>(value))};
  results[threadIdx.x] = mine;
}

TEST(Runtime, ReductionsJoinAllLanes) {
  std::vector<unsigned> values(32);
  Reductions expected = {0, ~0u, 0, ~0u, 0, 0, INT_MAX, INT_MIN};
  for (unsigned i = 0; i < 32; ++i) {
    values[i] = (i * 2654435761u) | 0x10u;
    expected.sum += values[i];
    expected.least = std::min(expected.least, values[i]);
    expected.most = std::max(expected.most, values[i]);
    expected.both &= values[i];
    expected.either |= values[i];
    expected.odd ^= values[i];
    expected.least_signed = std::min(expected.least_signed, static_cast<int>(values[i]));
    expected.most_signed = std::max(expected.most_signed, static_cast<int>(values[i]));
  }
  std::vector<Reductions> results(32);

  ASSERT_EQ(Launch(&Reduce, dim3(1), dim3(32), 0, nullptr, values.data(), results.data()), 0);

  for (const Reductions& result : results) {
    EXPECT_EQ(result.sum, expected.sum);
    EXPECT_EQ(result.least, expected.least);
    EXPECT_EQ(result.most, expected.most);
    EXPECT_EQ(result.both, expected.both);
    EXPECT_EQ(result.either, expected.either);
    EXPECT_EQ(result.odd, expected.odd);
    EXPECT_EQ(result.least_signed, expected.least_signed);
    EXPECT_EQ(result.most_signed, expected.most_signed);
  }
  ExpectNoKernelError();
}

// The halves of a warp go different ways and each exchanges within itself.
__global__ void ExchangeWithinHalves(int* values) {
  const int lane = static_cast<int>(threadIdx.x);
  if (lane < 16) {
    int value = lane;
    for (int round = 0; round < 3; ++round) {
      value = __shfl_sync(0x0000ffffu, value, (lane + 1) % 16);
    }
    values[lane] = value;
  } else {
    values[lane] = __shfl_xor_sync(0xffff0000u, lane, 1);
  }
  __syncwarp();
  values[32 + lane] = static_cast<int>(__ballot_sync(kAllLanes, lane == 20));
}

TEST(Runtime, PartialMasksMeetAmongThemselves) {
  std::vector<int> values(64);

  ASSERT_EQ(Launch(&ExchangeWithinHalves, dim3(1), dim3(32), 0, nullptr, values.data()), 0);

  for (int lane = 0; lane < 32; ++lane) {
    const auto at = static_cast<std::size_t>(lane);
    EXPECT_EQ(values[at], lane < 16 ? (lane + 3) % 16 : lane ^ 1);
    EXPECT_EQ(values[32 + at], 1 << 20);
  }
  ExpectNoKernelError();
}

// --- threads that end

__global__ void EndEarly(int* ended_with, unsigned* votes, int* past_the_end) {
  const int thread = static_cast<int>(threadIdx.x);
  ended_with[thread] = 1;
  if (thread % 3 == 0 || blockIdx.x == 1) {
    return;
  }
  votes[thread] = __ballot_sync(kAllLanes, 1);
  past_the_end[thread] = __shfl_xor_sync(kAllLanes, thread, 32 - thread % 32 == 31 ? 1 : 0);
  ended_with[thread] = 2;
}

TEST(Runtime, LanesThatHaveEndedAreNotWaitedFor) {
  constexpr unsigned kThreads = 45;  // the second warp is not full
  std::vector<int> ended_with(kThreads);
  std::vector<unsigned> votes(kThreads);
  std::vector<int> past_the_end(kThreads);

  ASSERT_EQ(Launch(&EndEarly, dim3(1), dim3(kThreads), 0, nullptr, ended_with.data(), votes.data(),
                   past_the_end.data()),
            0);

  for (unsigned t = 0; t < kThreads; ++t) {
    unsigned live = 0;
    for (unsigned lane = 0; lane < 32; ++lane) {
      const unsigned thread = t / 32 * 32 + lane;
      live |= thread < kThreads && thread % 3 != 0 ? 1u << lane : 0u;
    }
    EXPECT_EQ(ended_with[t], t % 3 == 0 ? 1 : 2);
    EXPECT_EQ(votes[t], t % 3 == 0 ? 0 : live) << t;
    if (t % 3 != 0) {
      // Lane 1 asks lane 0, which has ended: what comes is all ones.
      EXPECT_EQ(past_the_end[t], t % 32 != 1 ? static_cast<int>(t) : t == 1 ? -1 : 32) << t;
    }
  }
  ExpectNoKernelError();
}

// --- atomics, votes of a block

__global__ void CountIn(int* sum, unsigned* most, float* total, int* votes, int* winners) {
  __shared__ int in_block;
  if (threadIdx.x == 0) {
    in_block = 0;
  }
  __syncthreads();
  atomicAdd(&in_block, 1);
  atomicAdd(total, 0.5f);
  atomicMax(most, blockIdx.x * 1000 + threadIdx.x);
  if (atomicCAS(&winners[blockIdx.x], -1, static_cast<int>(threadIdx.x)) == -1) {
    atomicAdd(sum, 1000);
  }
  const int count = __syncthreads_count(threadIdx.x % 4 == 0);
  const int any = __syncthreads_or(threadIdx.x == 7);
  const int all = __syncthreads_and(threadIdx.x < 95);
  if (threadIdx.x == 0) {
    atomicAdd(sum, in_block);
    votes[blockIdx.x] = count * 100 + any * 10 + all;
  }
}

TEST(Runtime, AtomicsAddUpAndBlocksVote) {
  constexpr unsigned kBlocks = 5;
  int sum = 0;
  unsigned most = 3;
  float total = 0;
  std::vector<int> votes(kBlocks);
  std::vector<int> winners(kBlocks, -1);

  ASSERT_EQ(Launch(&CountIn, dim3(kBlocks), dim3(96), 0, nullptr, &sum, &most, &total, votes.data(),
                   winners.data()),
            0);

  EXPECT_EQ(sum, static_cast<int>(kBlocks) * (96 + 1000));
  EXPECT_EQ(most, 4095u);
  EXPECT_EQ(total, kBlocks * 96 * 0.5f);
  EXPECT_EQ(votes, std::vector<int>(kBlocks, 24 * 100 + 10));
  ExpectNoKernelError();
}

// --- order and poison

__global__ void NoteOrder(int* next, int* order) {
  if (threadIdx.x % 32 == 0) {
    order[atomicAdd(next, 1)] = static_cast<int>(blockIdx.x * 10 + threadIdx.x / 32);
  }
  __syncwarp();
  __shfl_sync(kAllLanes, 0, 0);
  if (threadIdx.x % 32 == 0) {
    order[atomicAdd(next, 1)] = static_cast<int>(blockIdx.x * 10 + threadIdx.x / 32);
  }
}

TEST(Runtime, AWarpRunsAsFarAsItCanAndEverySecondBlockBeginsWithTheLastWarp) {
  int next = 0;
  std::vector<int> order(12);

  ASSERT_EQ(Launch(&NoteOrder, dim3(2), dim3(96), 0, nullptr, &next, order.data()), 0);

  EXPECT_EQ(order, (std::vector<int>{0, 0, 1, 1, 2, 2, 12, 12, 11, 11, 10, 10}));
  ExpectNoKernelError();
}

__global__ void LookAtShared(float* before, int words) {
  float* const shared = DynamicShared<float>();
  for (int i = 0; i < words; ++i) {
    before[blockIdx.x * static_cast<unsigned>(words) + static_cast<unsigned>(i)] = shared[i];
    shared[i] = 1;
  }
}

TEST(Runtime, DynamicSharedMemoryOfEveryBlockStartsAsNan) {
  std::vector<float> before(3 * 17);

  ASSERT_EQ(Launch(&LookAtShared, dim3(3), dim3(1), 17 * sizeof(float), nullptr, before.data(), 17),
            0);

  for (const float value : before) {
    EXPECT_TRUE(std::isnan(value));
  }
  ExpectNoKernelError();
}

__global__ void NoteNothing() {}

TEST(Runtime, SizesThatNoGpuTakesAreRefused) {
  constexpr int kInvalidValue = 1;
  constexpr int kInvalidConfiguration = 9;
  EXPECT_EQ(Launch(&NoteNothing, dim3(0), dim3(32), 0, nullptr), kInvalidConfiguration);
  EXPECT_EQ(Launch(&NoteNothing, dim3(1, 65536), dim3(32), 0, nullptr), kInvalidConfiguration);
  EXPECT_EQ(Launch(&NoteNothing, dim3(1), dim3(1025), 0, nullptr), kInvalidConfiguration);
  EXPECT_EQ(Launch(&NoteNothing, dim3(1), dim3(32, 33), 0, nullptr), kInvalidConfiguration);
  EXPECT_EQ(Launch(&NoteNothing, dim3(1), dim3(1, 1, 65), 0, nullptr), kInvalidConfiguration);
  EXPECT_EQ(Launch(&NoteNothing, dim3(1), dim3(32), 227 * 1024 + 1, nullptr), kInvalidValue);
  ExpectNoKernelError();
}

// --- streams and OS threads

class LateStream : public emulated::HostStream {
 public:
  void Add(std::function<void()> work) override { work_.push_back(std::move(work)); }
  void Run() {
    for (const auto& work : work_) {
      work();
    }
  }

 private:
  std::vector<std::function<void()>> work_;
};

__global__ void Append(int* values, int* count, int value) {
  values[(*count)++] = value;
}

TEST(Runtime, AStreamRunsLaunchesLaterInTheirOrderWithTheArgumentsOfTheCall) {
  LateStream stream;
  std::vector<int> values(3);
  int count = 0;
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(Launch(&Append, dim3(1), dim3(1), 0, stream.handle(), values.data(), &count, i), 0);
  }

  EXPECT_EQ(count, 0);
  stream.Run();

  EXPECT_EQ(values, (std::vector<int>{0, 1, 2}));
  ExpectNoKernelError();
}

TEST(Runtime, OsThreadsTakeTurnsWithTheirGrids) {
  constexpr unsigned kBlocks = 20;
  std::vector<std::vector<int>> values(2, std::vector<int>(kBlocks * 64));
  {
    std::vector<std::jthread> threads;
    for (std::vector<int>& own : values) {
      std::iota(own.begin(), own.end(), 0);
      threads.emplace_back([&own] {
        Launch(&ReverseInRounds, dim3(kBlocks), dim3(64), 64 * sizeof(int), nullptr, own.data(), 5);
      });
    }
  }

  for (const std::vector<int>& own : values) {
    for (std::size_t i = 0; i < own.size(); ++i) {
      ASSERT_EQ(own[i], static_cast<int>(i / 64 * 64 + 63 - i % 64 + 5));
    }
  }
  ExpectNoKernelError();
}

}  // namespace
}  // namespace baton::BATON_CUDA_NAMESPACE
