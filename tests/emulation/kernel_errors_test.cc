#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "kernels/cuda/launch.cuh"
#include "tests/emulation/runtime.h"
#include "tests/emulation/sanitizer_hooks.h"

// What kernels may not do ends their launch with an error that says where.
namespace baton::BATON_CUDA_NAMESPACE {
namespace {

using emulated::TakeKernelError;

constexpr unsigned kAllLanes = 0xffffffffu;

__global__ void DivergeAtABarrier() {
  if (threadIdx.x < 40) {
    __syncthreads();
  }
}

__global__ void WaitInTwoPlaces() {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void WaitForALaneThatNeverComes() {
  if (threadIdx.x == 3) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

__global__ void BeOutsideOfItsMask() {
  __ballot_sync(0xfffffffeu, 1);
}

__global__ void MixOperations() {
  if (threadIdx.x < 16) {
    __syncwarp();
  } else {
    __ballot_sync(kAllLanes, 1);
  }
}

__global__ void WritePastShared() {
  DynamicShared<int>()[4] = 0;
}

__global__ void CountBlocks(int* blocks) {
  if (threadIdx.x == 0) {
    ++*blocks;
  }
  if (blockIdx.x == 2) {
    DivergeAtABarrier();
  }
}

// Needs every other thread's write.
__global__ void Reverse(int* values) {
  int* const shared = DynamicShared<int>();
  shared[threadIdx.x] = values[threadIdx.x];
  __syncthreads();
  values[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

class KernelErrors : public testing::Test {
 protected:
  // After an error the emulator is as before: a kernel runs and is right.
  void TearDown() override {
    std::vector<int> values(64);
    std::iota(values.begin(), values.end(), 0);
    EXPECT_EQ(Launch(&Reverse, dim3(1), dim3(64), 64 * sizeof(int), nullptr, values.data()), 0);
    EXPECT_EQ(TakeKernelError(), "");
    EXPECT_EQ(values.front(), 63);
    EXPECT_EQ(values.back(), 0);
  }
};

TEST_F(KernelErrors, ThreadsThatEndedWhileOthersWait) {
  ASSERT_EQ(Launch(&DivergeAtABarrier, dim3(2), dim3(64), 0, nullptr), 0);
  EXPECT_THAT(TakeKernelError(),
              testing::MatchesRegex("divergent threads in block \\(0, 0, 0\\): 40 at the barrier "
                                    ".*kernel_errors_test.cc:[0-9]+, 24 have ended"));
  EXPECT_EQ(TakeKernelError(), "");
}

TEST_F(KernelErrors, ThreadsAtTwoBarriers) {
  ASSERT_EQ(Launch(&WaitInTwoPlaces, dim3(1), dim3(64), 0, nullptr), 0);
  EXPECT_THAT(TakeKernelError(),
              testing::MatchesRegex("divergent threads in block \\(0, 0, 0\\): 40 at the barrier "
                                    ".*:[0-9]+, 24 at the barrier .*:[0-9]+"));
}

TEST_F(KernelErrors, LanesThatWaitForOneThatIsElsewhere) {
  ASSERT_EQ(Launch(&WaitForALaneThatNeverComes, dim3(1), dim3(32), 0, nullptr), 0);
  EXPECT_THAT(TakeKernelError(),
              testing::MatchesRegex("divergent threads in block \\(0, 0, 0\\): 31 at the warp "
                                    "operation .*:[0-9]+, 1 at the barrier .*:[0-9]+"));
}

TEST_F(KernelErrors, ALaneOutsideOfItsOwnMask) {
  ASSERT_EQ(Launch(&BeOutsideOfItsMask, dim3(1), dim3(32), 0, nullptr), 0);
  EXPECT_THAT(TakeKernelError(),
              testing::HasSubstr("thread (0, 0, 0): the lane is not in its own mask"));
}

TEST_F(KernelErrors, DifferentOperationsOfOneMask) {
  ASSERT_EQ(Launch(&MixOperations, dim3(1), dim3(32), 0, nullptr), 0);
  EXPECT_THAT(TakeKernelError(), testing::HasSubstr("at another warp operation"));
}

TEST_F(KernelErrors, WritesPastDynamicSharedMemory) {
  if (emulated::UnderAddressSanitizer()) {
    GTEST_SKIP() << "AddressSanitizer ends the program at the write";
  }
  ASSERT_EQ(Launch(&WritePastShared, dim3(1), dim3(1), 16, nullptr), 0);
  EXPECT_EQ(TakeKernelError(), "block (0, 0, 0) wrote past its 16 bytes of dynamic shared memory");
}

TEST_F(KernelErrors, EndTheLaunchAtTheBlockThatHasOne) {
  int blocks = 0;
  ASSERT_EQ(Launch(&CountBlocks, dim3(6), dim3(64), 0, nullptr, &blocks), 0);
  EXPECT_EQ(blocks, 3);
  EXPECT_THAT(TakeKernelError(), testing::HasSubstr("block (2, 0, 0)"));
}

}  // namespace
}  // namespace baton::BATON_CUDA_NAMESPACE
