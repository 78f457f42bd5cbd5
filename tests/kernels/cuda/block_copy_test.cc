#include <gtest/gtest.h>

#include "kernels/cuda/kernel_table.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/oracle_comparison.h"

namespace baton {
namespace {

using Bytes = std::vector<std::byte>;

Bytes Random(Numbers& numbers, std::size_t count) {
  Bytes bytes;
  for (std::size_t i = 0; i < count; ++i) {
    bytes.push_back(static_cast<std::byte>(numbers.Below(256)));
  }
  return bytes;
}

// `count` different places of a pool of places one piece and 16 bytes long, in any order.
std::vector<std::size_t> Scattered(Numbers& numbers, std::size_t count, std::size_t piece_bytes) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < count; ++i) {
    places.push_back(i * (piece_bytes + 16));
  }
  std::shuffle(places.begin(), places.end(), numbers.generator());
  return places;
}

DeviceArray<std::byte*> Addresses(const DeviceArray<std::byte>& pool,
                                  const std::vector<std::size_t>& places) {
  std::vector<std::byte*> addresses;
  for (const std::size_t place : places) {
    addresses.push_back(pool.data() + place);
  }
  return DeviceArray<std::byte*>(addresses);
}

struct Shape {
  std::size_t count;
  std::size_t piece_bytes;
};

// One access, less than a block of threads, one block exactly, one more, and several.
constexpr Shape kShapes[] = {{1, 16},   {15, 16},  {17, 48},    {2, 8176},
                             {3, 8192}, {5, 8208}, {16, 12288}, {1, 40976}};

TEST(BlockCopy, GatherTakesThePiecesInOrder) {
  Numbers numbers(161);
  SCOPED_TRACE(numbers.Describe());
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.count << " of " << shape.piece_bytes);
    const Bytes content = Random(numbers, shape.count * (shape.piece_bytes + 16));
    const std::vector<std::size_t> places = Scattered(numbers, shape.count, shape.piece_bytes);
    const DeviceArray<std::byte> pool(content);
    const DeviceArray<std::byte*> pieces = Addresses(pool, places);
    const DeviceArray<std::byte> staging(shape.count * shape.piece_bytes);

    ASSERT_EQ(KernelsUnderTest().gather_blocks(
                  {.pieces = pieces.data(),
                   .staging = staging.data(),
                   .piece_bytes = static_cast<std::int64_t>(shape.piece_bytes),
                   .count = static_cast<int>(shape.count)},
                  cuda::StreamHandle{}),
              0);

    Bytes expected;
    for (const std::size_t place : places) {
      expected.insert(expected.end(), &content[place], &content[place] + shape.piece_bytes);
    }
    EXPECT_EQ(staging.Download(), expected);
    EXPECT_EQ(pool.Download(), content);
  }
}

TEST(BlockCopy, ScatterPutsThePiecesIntoTheirPlacesAndTouchesNothingElse) {
  Numbers numbers(162);
  SCOPED_TRACE(numbers.Describe());
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.count << " of " << shape.piece_bytes);
    const Bytes before = Random(numbers, shape.count * (shape.piece_bytes + 16));
    const Bytes content = Random(numbers, shape.count * shape.piece_bytes);
    const std::vector<std::size_t> places = Scattered(numbers, shape.count, shape.piece_bytes);
    const DeviceArray<std::byte> pool(before);
    const DeviceArray<std::byte*> pieces = Addresses(pool, places);
    const DeviceArray<std::byte> staging(content);

    ASSERT_EQ(KernelsUnderTest().scatter_blocks(
                  {.pieces = pieces.data(),
                   .staging = staging.data(),
                   .piece_bytes = static_cast<std::int64_t>(shape.piece_bytes),
                   .count = static_cast<int>(shape.count)},
                  cuda::StreamHandle{}),
              0);

    Bytes expected = before;
    for (std::size_t i = 0; i < shape.count; ++i) {
      std::copy_n(&content[i * shape.piece_bytes], shape.piece_bytes, &expected[places[i]]);
    }
    EXPECT_EQ(pool.Download(), expected);
  }
}

TEST(BlockCopy, NothingToCopyIsNothingToDo) {
  EXPECT_EQ(KernelsUnderTest().gather_blocks({.piece_bytes = 16}, cuda::StreamHandle{}), 0);
  EXPECT_EQ(KernelsUnderTest().scatter_blocks({.count = 3}, cuda::StreamHandle{}), 0);
}

}  // namespace
}  // namespace baton
