#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/attention.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/oracle_comparison.h"

// What the direct tests of the two attention kernels share.
namespace baton {

struct AttentionShape {
  int heads = 0;     // H
  int kv_heads = 0;  // G
  int head_dim = 0;  // D
  cuda::Element element = cuda::Element::kBFloat16;

  std::string Describe() const;
};

// Head dimension, element, heads of a kv head.
using AttentionTestParam = std::tuple<int, cuda::Element, int>;
std::string AttentionTestName(const ::testing::TestParamInfo<AttentionTestParam>& info);
AttentionShape ShapeOf(const AttentionTestParam& param);  // with 2 kv heads

struct SegmentView {
  int segment = 0;
  int delta = 0;
  int visible_tokens = 0;
};
using RowView = std::vector<SegmentView>;  // what one row sees

// Row t of a plain request: one segment, position `position + t`.
std::vector<RowView> PlainRows(int segment, int position, int count);

// Bits of the elements that a kernel wrote, [rows, H, D].
using Bits = std::vector<std::uint16_t>;

// A pool where every byte is 0xff, so that a slot nobody wrote is NaN; segments scattered over it;
// and launches of both kernels over them. Rows of queries and of outputs lie apart in memory, as in
// the result of a fused product.
//
// What a launch writes beside its rows fails the test.
class AttentionContext {
 public:
  static constexpr int kPositions = 700;  // deltas are in (-kPositions, kPositions)

  AttentionContext(const AttentionShape& shape, Numbers& numbers, int blocks = 140);

  // A segment whose first `written` tokens hold normal numbers, its keys turned by their index; the
  // others hold NaN.
  int AddSegment(int tokens, int written);
  int AddSegment(int tokens) { return AddSegment(tokens, tokens); }
  // Sets all values of a token.
  void SetValues(int segment, int token, float value);

  // Queries of `count` rows, [count, H, D].
  std::vector<float> Queries(int count) { return numbers_.Normals(RowSize(count)); }

  // Takes rows [first, first + views.size()) of `query`. `splits` 0: as many as a row needs.
  Bits Decode(const std::vector<float>& query,
              int first,
              const std::vector<RowView>& views,
              int splits = 0);
  // The same, the rows in this order; rows that `order` lacks must stay as they were: all 0xffff.
  Bits DecodeInOrder(const std::vector<float>& query,
                     const std::vector<RowView>& views,
                     const std::vector<int>& order,
                     int splits);
  // In tiles of this many rows; 0: as many as a tile holds.
  Bits Prefill(const std::vector<float>& query,
               int first,
               const std::vector<RowView>& views,
               int tile_rows = 0);

  // In double, of the keys and values as they are stored.
  std::vector<double> Expected(const std::vector<float>& query,
                               const std::vector<RowView>& views) const;

  std::vector<double> ToDoubles(const Bits& bits) const;
  std::size_t RowSize(int rows = 1) const {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(shape_.heads) *
           static_cast<std::size_t>(shape_.head_dim);
  }
  int MostTileRows() const { return cuda::kTileRows * shape_.kv_heads / shape_.heads; }
  const AttentionShape& shape() const { return shape_; }

 private:
  struct Segment {
    std::vector<int> blocks;
    int tokens = 0;
  };
  struct Launchable;

  // Where element 0 of a key (or value) lies in the pool, in elements.
  std::size_t Place(const Segment& segment, int token, int kv_head, bool value) const;
  double Stored(std::size_t place) const;
  std::uint16_t Rounded(float value) const;
  Launchable Prepare(const std::vector<float>& query,
                     int first,
                     const std::vector<RowView>& views) const;

  AttentionShape shape_;
  Numbers& numbers_;
  std::vector<double> frequencies_;  // [D / 2]
  std::vector<float> rope_;          // [kPositions, D / 2, 2]
  std::vector<std::uint16_t> pool_;  // [blocks, layers, 2, G, 16, D]
  std::vector<int> free_;
  std::vector<Segment> segments_;
};

}  // namespace baton
