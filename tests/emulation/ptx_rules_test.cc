#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/ptx.cuh"

// What the emulator adds to the instructions' contracts, which tests/kernels/cuda/ptx_test.cc
// holds: copies that are not waited for can't be used, addresses that a GPU would refuse are
// refused.
namespace baton::BATON_CUDA_NAMESPACE {
namespace {

using emulated::TakeKernelError;

constexpr int kWarp = 32;

std::vector<std::uint32_t> Numbered(std::size_t words) {
  std::vector<std::uint32_t> source(words);
  for (std::size_t i = 0; i < words; ++i) {
    source[i] = 0x01010101u * static_cast<std::uint32_t>(i + 1);
  }
  return source;
}

// An open group is not waited for, an empty one counts.
__global__ void CopyBesideTheGroups(const std::uint32_t* source, std::uint32_t* seen) {
  std::uint32_t* const shared = DynamicShared<std::uint32_t>();
  CopyAsync16(shared, source);
  CommitCopies();
  CommitCopies();
  CopyAsync16(shared + 4, source + 4);
  WaitForCopies<1>();
  seen[0] = shared[0];
  WaitForCopies<0>();
  seen[1] = shared[4];
  CommitCopies();
  WaitForCopies<0>();
  seen[2] = shared[4];
}

TEST(CopyAsync, OpenGroupsAreNotWaitedForAndEmptyOnesCount) {
  const std::vector<std::uint32_t> source = Numbered(8);
  std::vector<std::uint32_t> seen(3);

  ASSERT_EQ(Launch(&CopyBesideTheGroups, dim3(1), dim3(1), 32, nullptr, source.data(), seen.data()),
            0);

  EXPECT_EQ(TakeKernelError(), "");
  EXPECT_EQ(seen, (std::vector<std::uint32_t>{source[0], 0xffffffffu, source[4]}));
}

__global__ void CopyFrom(const char* source) {
  CopyAsync16(DynamicShared<char>(), source);
}
__global__ void CopyTo(const char* source, int offset) {
  CopyAsync16(DynamicShared<char>() + offset, source);
}
__global__ void LoadFrom(int offset) {
  unsigned r[4];
  LoadMatrices4(r, DynamicShared<char>() + offset);
}

TEST(Alignment, AddressesOffTheGridOfSixteenBytesFailTheKernel) {
  alignas(16) const char source[64] = {};

  ASSERT_EQ(Launch(&CopyFrom, dim3(1), dim3(1), 64, nullptr, source + 8), 0);
  EXPECT_EQ(TakeKernelError(),
            "block (0, 0, 0) thread (0, 0, 0): cp.async from global memory: the address is no "
            "multiple of 16");
  ASSERT_EQ(Launch(&CopyTo, dim3(1), dim3(1), 64, nullptr, source, 4), 0);
  EXPECT_EQ(TakeKernelError(),
            "block (0, 0, 0) thread (0, 0, 0): cp.async to shared memory: the address is no "
            "multiple of 16");
  ASSERT_EQ(Launch(&LoadFrom, dim3(1), dim3(kWarp), 64, nullptr, 2), 0);
  EXPECT_EQ(TakeKernelError(),
            "block (0, 0, 0) thread (0, 0, 0): ldmatrix: the address is no multiple of 16");
}

}  // namespace
}  // namespace baton::BATON_CUDA_NAMESPACE
