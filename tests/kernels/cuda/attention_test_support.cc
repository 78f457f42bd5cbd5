#include "tests/kernels/cuda/attention_test_support.h"

#include <algorithm>
#include <cmath>

#include "tests/reference/reference_ops.h"

namespace baton {
namespace {

constexpr int kTokens = 16;  // of a block
constexpr int kLayers = 2;
constexpr int kLayer = 1;
constexpr double kRopeBase = 10000;
constexpr int kQueryGap = 24;   // floats between two rows of queries
constexpr int kOutputGap = 16;  // elements between two rows of outputs

}  // namespace

std::string AttentionShape::Describe() const {
  return "H " + std::to_string(heads) + " G " + std::to_string(kv_heads) + " D " +
         std::to_string(head_dim) + (element == cuda::Element::kHalf ? " fp16" : " bf16");
}

std::string AttentionTestName(const ::testing::TestParamInfo<AttentionTestParam>& info) {
  const auto [head_dim, element, group] = info.param;
  return (element == cuda::Element::kHalf ? "Half" : "BFloat16") + std::string("Dim") +
         std::to_string(head_dim) + "Group" + std::to_string(group);
}

AttentionShape ShapeOf(const AttentionTestParam& param) {
  const auto [head_dim, element, group] = param;
  return {.heads = 2 * group, .kv_heads = 2, .head_dim = head_dim, .element = element};
}

std::vector<RowView> PlainRows(int segment, int position, int count) {
  std::vector<RowView> views;
  for (int t = position; t < position + count; ++t) {
    views.push_back({{.segment = segment, .delta = t, .visible_tokens = t + 1}});
  }
  return views;
}

AttentionContext::AttentionContext(const AttentionShape& shape, Numbers& numbers, int blocks)
    : shape_(shape), numbers_(numbers) {
  const int pairs = shape.head_dim / 2;
  for (int i = 0; i < pairs; ++i) {
    frequencies_.push_back(std::pow(kRopeBase, -2.0 * i / shape.head_dim));
  }
  for (int position = 0; position < kPositions; ++position) {
    for (const double frequency : frequencies_) {
      rope_.push_back(static_cast<float>(std::cos(position * frequency)));
      rope_.push_back(static_cast<float>(std::sin(position * frequency)));
    }
  }
  const auto block_elements =
      static_cast<std::size_t>(kLayers * 2 * shape.kv_heads * kTokens * shape.head_dim);
  pool_.assign(static_cast<std::size_t>(blocks) * block_elements, 0xffff);
  for (int i = 0; i < blocks; ++i) {
    free_.push_back(i);
  }
  std::shuffle(free_.begin(), free_.end(), numbers.generator());
}

int AttentionContext::AddSegment(int tokens, int written) {
  Segment segment{.tokens = tokens};
  for (int first = 0; first < tokens; first += kTokens) {
    segment.blocks.push_back(free_.back());
    free_.pop_back();
  }
  for (int token = 0; token < written; ++token) {
    for (int kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
      const std::vector<float> key = numbers_.Normals(static_cast<std::size_t>(shape_.head_dim));
      const reference::Row turned =
          reference::Rotate(reference::Row(key.begin(), key.end()), token, frequencies_);
      const std::size_t key_place = Place(segment, token, kv_head, false);
      const std::size_t value_place = Place(segment, token, kv_head, true);
      for (std::size_t i = 0; i < turned.size(); ++i) {
        pool_[key_place + i] = Rounded(static_cast<float>(turned[i]));
        pool_[value_place + i] = Rounded(numbers_.Normal());
      }
    }
  }
  segments_.push_back(segment);
  return static_cast<int>(segments_.size()) - 1;
}

void AttentionContext::SetValues(int segment, int token, float value) {
  for (int kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
    const std::size_t place =
        Place(segments_[static_cast<std::size_t>(segment)], token, kv_head, true);
    for (std::size_t i = 0; i < static_cast<std::size_t>(shape_.head_dim); ++i) {
      pool_[place + i] = Rounded(value);
    }
  }
}

std::size_t AttentionContext::Place(const Segment& segment,
                                    int token,
                                    int kv_head,
                                    bool value) const {
  const int block = segment.blocks[static_cast<std::size_t>(token / kTokens)];
  const int half = 2 * (block * kLayers + kLayer) + (value ? 1 : 0);
  return static_cast<std::size_t>((half * shape_.kv_heads + kv_head) * kTokens + token % kTokens) *
         static_cast<std::size_t>(shape_.head_dim);
}

std::uint16_t AttentionContext::Rounded(float value) const {
  return shape_.element == cuda::Element::kHalf ? ToHalf(value).bits : ToBFloat16(value).bits;
}

double AttentionContext::Stored(std::size_t place) const {
  return static_cast<double>(shape_.element == cuda::Element::kHalf
                                 ? ToFloat(Half{pool_[place]})
                                 : ToFloat(BFloat16{pool_[place]}));
}

std::vector<double> AttentionContext::ToDoubles(const Bits& bits) const {
  std::vector<double> values;
  for (const std::uint16_t x : bits) {
    values.push_back(static_cast<double>(
        shape_.element == cuda::Element::kHalf ? ToFloat(Half{x}) : ToFloat(BFloat16{x})));
  }
  return values;
}

// Everything a launch reads and writes, in device memory.
struct AttentionContext::Launchable {
  DeviceArray<float> query;
  DeviceArray<std::uint16_t> pool;
  DeviceArray<float> rope;
  DeviceArray<int> row_segments;
  DeviceArray<int> entry_segment;
  DeviceArray<int> delta;
  DeviceArray<int> visible_tokens;
  DeviceArray<int> segment_blocks;
  DeviceArray<int> block_table;
  DeviceArray<std::uint16_t> output;
  std::size_t row_size;  // elements of a row of the output that a kernel may write

  cuda::AttentionParams Params(const AttentionShape& shape) const {
    const std::int64_t half = shape.kv_heads * kTokens * shape.head_dim;  // elements of all keys
    const auto layer_bytes = static_cast<std::int64_t>(2 * half * 2);
    const int width = shape.heads * shape.head_dim;
    return {.query = query.data(),
            .query_stride = width + kQueryGap,
            .pool = {.layer = reinterpret_cast<std::byte*>(pool.data()) + kLayer * layer_bytes,
                     .block_bytes = kLayers * layer_bytes,
                     .kv_heads = shape.kv_heads},
            .lists = {.row_segments = row_segments.data(),
                      .entry_segment = entry_segment.data(),
                      .delta = delta.data(),
                      .visible_tokens = visible_tokens.data(),
                      .segment_blocks = segment_blocks.data(),
                      .block_table = block_table.data()},
            .rope = rope.data(),
            .scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
            .heads = shape.heads,
            .head_dim = shape.head_dim,
            .element = shape.element,
            .output = output.data(),
            .output_stride = width + kOutputGap};
  }

  // The rows without the gaps between them, which must be untouched.
  Bits Output() const {
    const Bits all = output.Download();
    Bits rows;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i % (row_size + kOutputGap) < row_size) {
        rows.push_back(all[i]);
      } else {
        EXPECT_EQ(all[i], 0xffff) << "written between rows, element " << i;
      }
    }
    return rows;
  }
};

AttentionContext::Launchable AttentionContext::Prepare(const std::vector<float>& query,
                                                       int first,
                                                       const std::vector<RowView>& views) const {
  std::vector<int> row_segments = {0};
  std::vector<int> entry_segment;
  std::vector<int> delta;
  std::vector<int> visible_tokens;
  for (const RowView& view : views) {
    for (const SegmentView& seen : view) {
      entry_segment.push_back(seen.segment);
      delta.push_back(seen.delta);
      visible_tokens.push_back(seen.visible_tokens);
    }
    row_segments.push_back(static_cast<int>(entry_segment.size()));
  }
  std::vector<int> segment_blocks;
  std::vector<int> block_table;
  for (const Segment& segment : segments_) {
    segment_blocks.push_back(static_cast<int>(block_table.size()));
    block_table.insert(block_table.end(), segment.blocks.begin(), segment.blocks.end());
  }
  std::vector<float> spaced;
  for (std::size_t t = 0; t < views.size(); ++t) {
    const auto row = query.begin() +
                     static_cast<std::ptrdiff_t>((static_cast<std::size_t>(first) + t) * RowSize());
    spaced.insert(spaced.end(), row, row + static_cast<std::ptrdiff_t>(RowSize()));
    spaced.insert(spaced.end(), kQueryGap, std::nanf(""));
  }
  return {.query = DeviceArray<float>(spaced),
          .pool = DeviceArray<std::uint16_t>(pool_),
          .rope = DeviceArray<float>(rope_),
          .row_segments = DeviceArray<int>(row_segments),
          .entry_segment = DeviceArray<int>(entry_segment),
          .delta = DeviceArray<int>(delta),
          .visible_tokens = DeviceArray<int>(visible_tokens),
          .segment_blocks = DeviceArray<int>(segment_blocks),
          .block_table = DeviceArray<int>(block_table),
          .output = DeviceArray<std::uint16_t>(views.size() * (RowSize() + kOutputGap)),
          .row_size = RowSize()};
}

Bits AttentionContext::Decode(const std::vector<float>& query,
                              int first,
                              const std::vector<RowView>& views,
                              int splits) {
  if (splits == 0) {
    splits = 1;
    for (const RowView& view : views) {
      int visible = 0;
      for (const SegmentView& seen : view) {
        visible += seen.visible_tokens;
      }
      splits = std::max(splits, cuda::SplitsFor(visible));
    }
  }
  std::vector<int> rows;
  for (int t = 0; t < static_cast<int>(views.size()); ++t) {
    rows.push_back(t);
  }
  const std::vector<float> taken(query.begin() + static_cast<std::ptrdiff_t>(RowSize(first)),
                                 query.end());
  return DecodeInOrder(taken, views, rows, splits);
}

Bits AttentionContext::DecodeInOrder(const std::vector<float>& query,
                                     const std::vector<RowView>& views,
                                     const std::vector<int>& order,
                                     int splits) {
  const Launchable launchable = Prepare(query, 0, views);
  const DeviceArray<int> rows(order);
  const int row_count = static_cast<int>(order.size());
  const DeviceArray<float> partials(
      cuda::DecodeScratchFloats(row_count, shape_.heads, shape_.head_dim, splits));
  EXPECT_EQ(KernelsUnderTest().decode_attention({.attention = launchable.Params(shape_),
                                                 .rows = rows.data(),
                                                 .row_count = row_count,
                                                 .splits = splits,
                                                 .partials = partials.data()},
                                                {}),
            0);
  return launchable.Output();
}

Bits AttentionContext::Prefill(const std::vector<float>& query,
                               int first,
                               const std::vector<RowView>& views,
                               int tile_rows) {
  if (tile_rows == 0) {
    tile_rows = MostTileRows();
  }
  const Launchable launchable = Prepare(query, first, views);
  std::vector<int> tile_first_row;
  std::vector<int> rows_of_tile;
  const int row_count = static_cast<int>(views.size());
  for (int row = 0; row < row_count; row += tile_rows) {
    tile_first_row.push_back(row);
    rows_of_tile.push_back(std::min(tile_rows, row_count - row));
  }
  const DeviceArray<int> first_rows(tile_first_row);
  const DeviceArray<int> row_counts(rows_of_tile);
  EXPECT_EQ(KernelsUnderTest().prefill_attention({.attention = launchable.Params(shape_),
                                                  .tile_first_row = first_rows.data(),
                                                  .tile_rows = row_counts.data(),
                                                  .tiles = static_cast<int>(tile_first_row.size())},
                                                 {}),
            0);
  return launchable.Output();
}

std::vector<double> AttentionContext::Expected(const std::vector<float>& query,
                                               const std::vector<RowView>& views) const {
  const auto dim = static_cast<std::size_t>(shape_.head_dim);
  const double scale = 1.0 / std::sqrt(static_cast<double>(shape_.head_dim));
  std::vector<double> out;
  for (std::size_t t = 0; t < views.size(); ++t) {
    for (int head = 0; head < shape_.heads; ++head) {
      const int kv_head = head / (shape_.heads / shape_.kv_heads);
      const reference::Row row = RowOf(
          query, t * static_cast<std::size_t>(shape_.heads) + static_cast<std::size_t>(head), dim);
      std::vector<double> scores;
      std::vector<std::size_t> values;
      for (const SegmentView& seen : views[t]) {
        const Segment& segment = segments_[static_cast<std::size_t>(seen.segment)];
        const reference::Row turned = reference::Rotate(row, seen.delta, frequencies_);
        for (int token = 0; token < seen.visible_tokens; ++token) {
          const std::size_t key = Place(segment, token, kv_head, false);
          double dot = 0;
          for (std::size_t i = 0; i < dim; ++i) {
            dot += turned[i] * Stored(key + i);
          }
          scores.push_back(scale * dot);
          values.push_back(Place(segment, token, kv_head, true));
        }
      }
      reference::Row sums(dim, 0.0);
      if (!scores.empty()) {
        const reference::Row log_weights = reference::LogSoftmax(scores);
        for (std::size_t j = 0; j < values.size(); ++j) {
          const double weight = std::exp(log_weights[j]);
          for (std::size_t i = 0; i < dim; ++i) {
            sums[i] += weight * Stored(values[j] + i);
          }
        }
      }
      out.insert(out.end(), sums.begin(), sums.end());
    }
  }
  return out;
}

}  // namespace baton
