#include "kernels/tensor_view.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace baton {
namespace {

// The query part of fused rows: 2 tokens of (2 query heads, 1 key head, 1 value head) of
// dimension 2.
TEST(TensorView, SeesPartOfAFusedRow) {
  std::vector<int> fused(16);
  std::iota(fused.begin(), fused.end(), 0);

  const TensorView<const int> query = TensorView<int>(fused.data(), 2, 2, 2).WithRowStride(8);
  const TensorView<const int> key = TensorView<int>(fused.data() + 4, 2, 1, 2).WithRowStride(8);

  EXPECT_EQ(query(0, 1, 1), 3);
  EXPECT_EQ(query(1, 0, 0), 8);
  EXPECT_EQ(key(1, 0, 1), 13);
  EXPECT_EQ(query.Rows(1, 1)(0, 1, 0), 10);
  EXPECT_EQ(query.row_size(), 4);
  EXPECT_EQ(query.row_stride(), 8);
}

}  // namespace
}  // namespace baton
