#include "tests/emulation/runtime.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
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

}  // namespace
}  // namespace baton::BATON_CUDA_NAMESPACE
