#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>

#include "common/kv_layout.h"
#include "kernels/rope.h"
#include "tests/kernels/kernel_test_support.h"

namespace baton {
namespace {

constexpr int kPositions = 5000;
constexpr int kLayers = 2;
constexpr LayerIndex kLayer{1};

// Queries and keys are rounded to bf16 after rotation, 2^-8 at most each and 2^-17 in the mean
// square: that moves a score of standard deviation 1 by some 0.004, and its weight by as much,
// relatively. Weights, values and results are rounded once more. Worst seen over this suite: 5.3e-5
// normalised mean square (one head of dimension 2; 1.4e-5 for the others), 0.0091 absolute; the
// bounds are three times that.
constexpr Tolerance kAttention{.relative = 0, .absolute = 0.027, .nmse = 1.6e-4};

struct Heads {
  int query;      // H
  int key_value;  // G
  int dimension;  // D
};

// A list of keys and values as the model made them, and the blocks they are in.
struct Segment {
  std::vector<float> keys;    // [tokens, G, D], not rotated
  std::vector<float> values;  // [tokens, G, D]
  std::vector<BlockId> blocks;
  int tokens = 0;
};

struct Entry {
  int segment;
  int delta;
  int visible_tokens;
};

// A pool where every byte is 0xff, so that a slot nobody wrote is NaN, and segments scattered over
// it.
class Context {
 public:
  Context(Backend& backend, const RopeTable& rope, const Heads& heads, Numbers& numbers)
      : backend_(backend), rope_(rope), heads_(heads), numbers_(numbers) {
    const KvLayout layout = backend.LayoutFor(kLayers, heads.key_value, heads.dimension);
    memory_.emplace(backend,
                    std::vector<std::uint8_t>(kBlocks * layout.block_bytes(), std::uint8_t{0xff}));
    pool_ = MakeKvPoolView(reinterpret_cast<std::byte*>(memory_->data()), kBlocks, layout);
    free_.resize(kBlocks);
    for (std::uint32_t i = 0; i < kBlocks; ++i) {
      free_[i] = BlockId(i);
    }
    std::shuffle(free_.begin(), free_.end(), numbers.generator());
  }

  // A segment with its content known but not yet written.
  int Add(int tokens) {
    const std::size_t size = static_cast<std::size_t>(tokens) *
                             static_cast<std::size_t>(heads_.key_value * heads_.dimension);
    Segment segment{
        .keys = numbers_.Normals(size), .values = numbers_.Normals(size), .tokens = tokens};
    for (int first = 0; first < tokens; first += kBlockTokens) {
      segment.blocks.push_back(free_.back());
      free_.pop_back();
    }
    segments_.push_back(segment);
    return static_cast<int>(segments_.size()) - 1;
  }

  // The first `count` tokens again, as idle rows.
  void WriteIdle(int index, int count) { Write(index, 0, count, /*idle=*/true); }

  void Write(int index, int first, int count, bool idle = false) {
    Segment& segment = segments_[static_cast<std::size_t>(index)];
    std::vector<int> rotation;
    std::vector<BlockId> block;
    std::vector<int> offset;
    for (int j = first; j < first + count; ++j) {
      rotation.push_back(j);
      block.push_back(idle ? kIdleBlock
                           : segment.blocks[static_cast<std::size_t>(j / kBlockTokens)]);
      offset.push_back(j % kBlockTokens);
    }
    const Array<float> keys(backend_, segment.keys);
    const Array<float> values(backend_, segment.values);
    const auto rows = [&](const Array<float>& array) {
      return TensorView<const float>(array.data(), segment.tokens, heads_.key_value,
                                     heads_.dimension)
          .Rows(first, count);
    };
    const absl::Status status = backend_.RotateAndWriteKv({.key = rows(keys),
                                                           .value = rows(values),
                                                           .rotation = rotation,
                                                           .rope = &rope_,
                                                           .block = block,
                                                           .offset = offset,
                                                           .pool = pool_,
                                                           .layer = kLayer});
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(backend_.Synchronize().ok());  // keys and values go
  }

  int AddWritten(int tokens) {
    const int index = Add(tokens);
    Write(index, 0, tokens);
    return index;
  }

  // `query` is [rows, H, D].
  std::vector<BFloat16> Attend(const float* query, const std::vector<std::vector<Entry>>& rows) {
    std::vector<SegmentRef> segments;
    for (const Segment& segment : segments_) {
      segments.push_back({.blocks = segment.blocks, .tokens = segment.tokens});
    }
    std::vector<int> row_segments = {0};
    std::vector<int> entry_segment;
    std::vector<int> delta;
    std::vector<int> visible_tokens;
    for (const std::vector<Entry>& row : rows) {
      for (const Entry& entry : row) {
        entry_segment.push_back(entry.segment);
        delta.push_back(entry.delta);
        visible_tokens.push_back(entry.visible_tokens);
      }
      row_segments.push_back(static_cast<int>(entry_segment.size()));
    }
    const int count = static_cast<int>(rows.size());
    const Array<float> device_query(backend_,
                                    std::vector<float>(query, query + rows.size() * RowSize()));
    const Array<BFloat16> output(
        backend_, std::vector<BFloat16>(rows.size() * RowSize(), ToBFloat16(std::nanf(""))));
    const absl::Status status = backend_.PagedAttention(
        {.query = {device_query.data(), count, heads_.query, heads_.dimension},
         .pool = pool_,
         .layer = kLayer,
         .rope = &rope_,
         .segments = segments,
         .row_segments = row_segments,
         .entry_segment = entry_segment,
         .delta = delta,
         .visible_tokens = visible_tokens,
         .scale = Scale(),
         .output = {output.data(), count, heads_.query, heads_.dimension}});
    EXPECT_TRUE(status.ok()) << status;
    return output.Read();
  }

  std::vector<double> Expected(const std::vector<float>& query,
                               const std::vector<std::vector<Entry>>& rows) const {
    const auto dimension = static_cast<std::size_t>(heads_.dimension);
    const auto heads = static_cast<std::size_t>(heads_.query);
    const auto key_heads = static_cast<std::size_t>(heads_.key_value);
    const std::vector<double> frequencies = RopeFrequencies(heads_.dimension, kRopeBase);
    std::vector<double> out;
    for (std::size_t t = 0; t < rows.size(); ++t) {
      for (std::size_t h = 0; h < heads; ++h) {
        const std::size_t key_head = h / (heads / key_heads);
        std::vector<reference::VisibleSegment> visible;
        for (const Entry& entry : rows[t]) {
          const Segment& segment = segments_[static_cast<std::size_t>(entry.segment)];
          reference::VisibleSegment seen{.delta = static_cast<double>(entry.delta)};
          for (std::size_t j = 0; j < static_cast<std::size_t>(entry.visible_tokens); ++j) {
            seen.keys.push_back(RowOf(segment.keys, j * key_heads + key_head, dimension));
            seen.values.push_back(RowOf(segment.values, j * key_heads + key_head, dimension));
          }
          visible.push_back(seen);
        }
        const reference::Row row =
            reference::Attention(RowOf(query, t * heads + h, dimension), visible, frequencies,
                                 static_cast<double>(Scale()));
        out.insert(out.end(), row.begin(), row.end());
      }
    }
    return out;
  }

  std::size_t RowSize() const { return static_cast<std::size_t>(heads_.query * heads_.dimension); }
  std::vector<float> Queries(std::size_t rows) { return numbers_.Normals(rows * RowSize()); }
  KvPoolView pool() const { return pool_; }
  std::vector<std::uint8_t> PoolBytes() const { return memory_->Read(); }
  // Every slot holds NaN again.
  void Forget() { memory_->Write(std::vector<std::uint8_t>(PoolBytes().size(), 0xff)); }

 private:
  static constexpr int kBlocks = 150;

  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(heads_.dimension)); }

  Backend& backend_;
  const RopeTable& rope_;
  Heads heads_;
  Numbers& numbers_;
  std::optional<Array<std::uint8_t>> memory_;
  KvPoolView pool_;
  std::vector<BlockId> free_;
  std::vector<Segment> segments_;
};

// Row t of a plain request: one segment, position `position + t`.
std::vector<std::vector<Entry>> PlainRows(int segment, int position, int count) {
  std::vector<std::vector<Entry>> rows;
  for (int t = position; t < position + count; ++t) {
    rows.push_back({{.segment = segment, .delta = t, .visible_tokens = t + 1}});
  }
  return rows;
}

class PagedAttentionTest : public KernelTest {
 protected:
  // CUDA's kernels are for two dimensions of heads.
  bool Computes(const Heads& heads) const {
    return !IsCuda() || heads.dimension == 64 || heads.dimension == 128;
  }
};

TEST_P(PagedAttentionTest, AgreesWithTheOracleForEveryShapeOfHeads) {
  Numbers numbers(51);
  SCOPED_TRACE(numbers.Describe());
  for (const Heads& heads : {Heads{9, 3, 64},
                             {4, 1, 128},
                             {8, 8, 64},
                             {7, 1, 64},
                             {6, 2, 128},
                             {32, 1, 64},
                             {1, 1, 2},
                             {2, 2, 6},
                             {6, 2, 16},
                             {5, 1, 18},
                             {8, 8, 32},
                             {7, 1, 48},
                             {6, 3, 80},
                             {30, 1, 10},
                             {2, 1, 256}}) {
    if (!Computes(heads)) {
      continue;
    }
    SCOPED_TRACE(testing::Message()
                 << "H " << heads.query << " G " << heads.key_value << " D " << heads.dimension);
    const std::unique_ptr<RopeTable> rope = MakeRope(backend(), heads.dimension, kPositions);
    Context context(backend(), *rope, heads, numbers);
    const int segment = context.AddWritten(97);
    const std::vector<std::vector<Entry>> rows = PlainRows(segment, 60, 37);
    const std::vector<float> query = context.Queries(rows.size());

    const std::vector<BFloat16> output = context.Attend(query.data(), rows);

    ExpectClose(ToDoubles(output), context.Expected(query, rows), kAttention);
  }
}

TEST_P(PagedAttentionTest, AgreesWithTheOracleForEveryNumberOfKeys) {
  Numbers numbers(52);
  SCOPED_TRACE(numbers.Describe());
  const Heads heads{6, 2, 64};
  const std::unique_ptr<RopeTable> rope = MakeRope(backend(), heads.dimension, kPositions);
  for (const int tokens :
       {1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 79, 80, 81, 127, 128, 129, 257, 1031}) {
    SCOPED_TRACE(testing::Message() << tokens << " keys");
    Context context(backend(), *rope, heads, numbers);
    const int segment = context.AddWritten(tokens);
    const std::vector<std::vector<Entry>> rows = PlainRows(segment, tokens - 1, 1);
    const std::vector<float> query = context.Queries(1);

    const std::vector<BFloat16> output = context.Attend(query.data(), rows);

    ExpectClose(ToDoubles(output), context.Expected(query, rows), kAttention);
  }
}

// The shared-cache case: a row sees several segments, at distances that are not their lengths, some
// only in part, some not at all, some from before their start.
TEST_P(PagedAttentionTest, AgreesWithTheOracleOverSeveralSegments) {
  Numbers numbers(53);
  SCOPED_TRACE(numbers.Describe());
  const Heads heads{6, 2, 64};
  const std::unique_ptr<RopeTable> rope = MakeRope(backend(), heads.dimension, kPositions);
  Context context(backend(), *rope, heads, numbers);
  const int prompt = context.AddWritten(150);
  const int first = context.AddWritten(41);
  const int second = context.AddWritten(17);
  const int empty = context.Add(0);
  std::vector<std::vector<Entry>> rows = {
      {{prompt, 207, 150}, {first, 57, 41}, {second, 16, 17}},
      {{prompt, 207, 150}, {second, 57, 17}, {first, 40, 41}},
      {{prompt, 207, 64}, {second, 57, 0}, {first, 40, 7}},
      {{second, 4999, 1}},
      {{first, -30, 40}, {empty, 9, 0}, {prompt, 3, 129}},
      {{first, 3, 0}, {second, 0, 16}},
  };
  // A chunk over two segments: the same list in every row, so that rows may be computed together.
  for (int t = 0; t < 30; ++t) {
    rows.push_back({{prompt, 1000 + t, 149 - t}, {first, t, t}, {second, 3000 - t, 17}});
  }
  const std::vector<float> query = context.Queries(rows.size());

  const std::vector<BFloat16> output = context.Attend(query.data(), rows);

  ExpectClose(ToDoubles(output), context.Expected(query, rows), kAttention);
}

// On CUDA a row that is alone in its chunk goes to another kernel: there are no chunks of one row.
TEST_P(PagedAttentionTest, APromptCutIntoChunksGivesTheSameBits) {
  Numbers numbers(54);
  SCOPED_TRACE(numbers.Describe());
  const int tokens = IsEmulated() ? 130 : 300;
  const std::vector<int> chunks =
      IsCuda() ? std::vector<int>{7, 16, 100} : std::vector<int>{1, 7, 16, 256};
  for (const Heads& heads : {Heads{9, 3, 64}, {2, 2, 24}, {5, 1, 128}}) {
    if (!Computes(heads)) {
      continue;
    }
    SCOPED_TRACE(testing::Message()
                 << "H " << heads.query << " G " << heads.key_value << " D " << heads.dimension);
    const std::unique_ptr<RopeTable> rope = MakeRope(backend(), heads.dimension, kPositions);
    Context context(backend(), *rope, heads, numbers);
    const std::vector<float> query = context.Queries(static_cast<std::size_t>(tokens));
    const int segment = context.AddWritten(tokens);
    const std::vector<BFloat16> together =
        context.Attend(query.data(), PlainRows(segment, 0, tokens));

    for (const int chunk : chunks) {
      context.Forget();  // the slots of later tokens hold NaN while a chunk runs
      for (int first = 0; first < tokens; first += chunk) {
        const int count = std::min(chunk, tokens - first);
        context.Write(segment, first, count);
        const std::size_t offset = static_cast<std::size_t>(first) * context.RowSize();
        const std::vector<BFloat16> part =
            context.Attend(query.data() + offset, PlainRows(segment, first, count));
        ASSERT_EQ(
            std::memcmp(part.data(), together.data() + offset, part.size() * sizeof(BFloat16)), 0)
            << "chunks of " << chunk << ", at " << first;
      }
    }
  }
}

bool SameSegments(const std::vector<Entry>& a, const std::vector<Entry>& b) {
  return std::ranges::equal(a, b,
                            [](const Entry& x, const Entry& y) { return x.segment == y.segment; });
}

// On CUDA a row with a neighbour of the same segments goes to the kernel for chunks, any other to
// the one for single rows: there the row is compared to itself with just one such neighbour.
TEST_P(PagedAttentionTest, ARowDoesNotDependOnTheRowsBesideIt) {
  Numbers numbers(55);
  SCOPED_TRACE(numbers.Describe());
  const Heads heads{6, 2, 64};
  const std::unique_ptr<RopeTable> rope = MakeRope(backend(), heads.dimension, kPositions);
  Context context(backend(), *rope, heads, numbers);
  const int a = context.AddWritten(200);
  const int b = context.AddWritten(90);
  const int c = context.AddWritten(33);
  std::vector<std::vector<Entry>> rows;
  for (int t = 0; t < 60; ++t) {
    switch (numbers.Below(4)) {
      case 0:
        rows.push_back({{a, numbers.Below(kPositions), 1 + numbers.Below(200)}});
        break;
      case 1:
        rows.push_back({{b, numbers.Below(kPositions), 1 + numbers.Below(90)}});
        break;
      case 2:
        rows.push_back(
            {{a, numbers.Below(kPositions), numbers.Below(201)}, {c, numbers.Below(40), 33}});
        break;
      default:  // joins the tile of the row before
        rows.push_back(rows.empty() ? std::vector<Entry>{{c, 1, 1}} : rows.back());
        for (Entry& entry : rows.back()) {
          entry.delta = numbers.Below(kPositions);
        }
        rows.back()[0].visible_tokens = 1 + numbers.Below(rows.back()[0].segment == a ? 200 : 33);
    }
  }
  const std::vector<float> query = context.Queries(rows.size());
  const std::vector<BFloat16> together = context.Attend(query.data(), rows);

  for (std::size_t t = 0; t < rows.size(); ++t) {
    const bool in_run = (t > 0 && SameSegments(rows[t - 1], rows[t])) ||
                        (t + 1 < rows.size() && SameSegments(rows[t], rows[t + 1]));
    std::vector<float> own(
        query.begin() + static_cast<std::ptrdiff_t>(t * context.RowSize()),
        query.begin() + static_cast<std::ptrdiff_t>((t + 1) * context.RowSize()));
    std::vector<std::vector<Entry>> few = {rows[t]};
    if (IsCuda() && in_run) {
      few.push_back(rows[t]);
      own.insert(own.end(), own.begin(), own.begin() + static_cast<std::ptrdiff_t>(own.size()));
    }
    const std::vector<BFloat16> alone = context.Attend(own.data(), few);
    ASSERT_EQ(std::memcmp(alone.data(), together.data() + t * context.RowSize(),
                          context.RowSize() * sizeof(BFloat16)),
              0)
        << "row " << t;
  }
}

TEST_P(PagedAttentionTest, ARowDoesNotDependOnTheNumberOfThreads) {
  if (IsCuda()) {
    GTEST_SKIP() << "CUDA has no number of threads";
  }
  const Heads heads{9, 3, 64};
  std::vector<BFloat16> with_one;
  for (const int threads : {1, 2, 5}) {
    Numbers numbers(56);
    SCOPED_TRACE(numbers.Describe());
    const std::unique_ptr<Backend> other = MakeBackend(threads);
    const std::unique_ptr<RopeTable> rope = MakeRope(*other, heads.dimension, kPositions);
    Context context(*other, *rope, heads, numbers);
    const int segment = context.AddWritten(130);
    const std::vector<float> query = context.Queries(130);
    for (int repeat = 0; repeat < 10; ++repeat) {
      const std::vector<BFloat16> output = context.Attend(query.data(), PlainRows(segment, 0, 130));
      if (with_one.empty()) {
        with_one = output;
      }
      ASSERT_EQ(output, with_one) << threads << " threads";
    }
  }
}

TEST_P(PagedAttentionTest, IdleRowsGiveZerosAndWriteNothing) {
  Numbers numbers(60);
  SCOPED_TRACE(numbers.Describe());
  const Heads heads{6, 2, 64};
  const std::unique_ptr<RopeTable> rope = MakeRope(backend(), heads.dimension, kPositions);
  Context context(backend(), *rope, heads, numbers);
  const int segment = context.AddWritten(70);
  const std::vector<std::vector<Entry>> busy = PlainRows(segment, 60, 3);
  const std::vector<std::vector<Entry>> rows = {{}, busy[0], busy[1], {}, busy[2], {}, {}};
  const std::vector<float> query = context.Queries(rows.size());
  const std::vector<std::uint8_t> pool = context.PoolBytes();

  const std::vector<BFloat16> output = context.Attend(query.data(), rows);

  const std::size_t size = context.RowSize();
  for (std::size_t t = 0; t < rows.size(); ++t) {
    const std::vector<BFloat16> row(output.begin() + static_cast<std::ptrdiff_t>(t * size),
                                    output.begin() + static_cast<std::ptrdiff_t>((t + 1) * size));
    if (rows[t].empty()) {
      EXPECT_EQ(row, std::vector<BFloat16>(size)) << t;
    } else {
      const std::vector<float> own(query.begin() + static_cast<std::ptrdiff_t>(t * size),
                                   query.begin() + static_cast<std::ptrdiff_t>((t + 1) * size));
      ExpectClose(ToDoubles(row), context.Expected(own, {rows[t]}), kAttention);
    }
  }
  context.WriteIdle(segment, 5);
  EXPECT_EQ(context.PoolBytes(), pool);
}

// A later token whose value overflowed must not reach the rows before it, not even as zero times
// infinity.
TEST_P(PagedAttentionTest, ARowSeesNothingOfLaterTokensInItsChunk) {
  Numbers numbers(57);
  SCOPED_TRACE(numbers.Describe());
  const Heads heads{3, 1, 64};
  const std::unique_ptr<RopeTable> rope = MakeRope(backend(), heads.dimension, kPositions);
  Context context(backend(), *rope, heads, numbers);
  const int segment = context.Add(100);
  context.Write(segment, 0, 70);  // 70 to 99 hold NaN
  const std::vector<float> query = context.Queries(100);

  const std::vector<BFloat16> output = context.Attend(query.data(), PlainRows(segment, 0, 100));

  for (std::size_t i = 0; i < output.size(); ++i) {
    ASSERT_EQ(std::isfinite(ToFloat(output[i])), i < 70 * context.RowSize())
        << "row " << i / context.RowSize();
  }
  const std::vector<BFloat16> without = context.Attend(query.data(), PlainRows(segment, 0, 70));
  EXPECT_EQ(std::memcmp(without.data(), output.data(), without.size() * sizeof(BFloat16)), 0);
}

TEST_P(PagedAttentionTest, LargeScoresDoNotOverflow) {
  Numbers numbers(58);
  SCOPED_TRACE(numbers.Describe());
  const Heads heads{2, 1, 64};
  const std::unique_ptr<RopeTable> rope = MakeRope(backend(), heads.dimension, kPositions);
  Context context(backend(), *rope, heads, numbers);
  const int segment = context.AddWritten(90);
  std::vector<float> query = context.Queries(1);
  for (float& x : query) {
    x *= 1e4f;  // one key takes all the weight
  }
  const std::vector<std::vector<Entry>> rows = PlainRows(segment, 89, 1);

  const std::vector<BFloat16> output = context.Attend(query.data(), rows);

  ExpectClose(ToDoubles(output), context.Expected(query, rows), {.absolute = 0.02, .nmse = 1e-4});
}

TEST_P(PagedAttentionTest, WritesOnlyItsSlotsOfItsLayer) {
  Numbers numbers(59);
  const Heads heads{2, 2, 64};
  const std::unique_ptr<RopeTable> rope = MakeRope(backend(), heads.dimension, kPositions);
  Context context(backend(), *rope, heads, numbers);
  const int segment = context.Add(20);

  context.Write(segment, 17, 2);

  std::size_t changed = 0;
  const std::vector<std::uint8_t> pool = context.PoolBytes();
  for (std::size_t i = 0; i < pool.size(); ++i) {
    const bool other_layer = i / context.pool().layer_bytes % kLayers != kLayer.value();
    const bool same = pool[i] == 0xff;
    ASSERT_TRUE(same || !other_layer) << i;
    changed += same ? 0 : 1;
  }
  // 2 tokens x 2 heads x (64 of key + 64 of value) x 2 bytes, of which some may be 0xff by chance.
  EXPECT_LE(changed, 1024u);
  EXPECT_GE(changed, 1000u);
}

TEST_P(PagedAttentionTest, ABlockOfTheExampleModelHasTheSizeOfTheDesign) {
  const KvLayout layout = backend().LayoutFor(30, 3, 64);
  EXPECT_EQ(layout.layer_bytes, 12288u);
  EXPECT_EQ(layout.block_bytes(), 368640u);
  EXPECT_EQ(layout.block_tokens, kBlockTokens);
}

INSTANTIATE_TEST_SUITE_P(On, PagedAttentionTest, kEveryBackend, BackendTestName);

}  // namespace
}  // namespace baton
