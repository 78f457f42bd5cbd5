#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/cuda/attention_test_support.h"

namespace baton {
namespace {

// Turned queries and weights are rounded to the element, then the result. Worst seen over this
// suite: bf16 0.0096 absolute and 8.4e-6 normalised mean square, fp16 0.0013 and 1.5e-7; the bounds
// are twice that. (Rounding the result alone: 1.6e-6 and 2.5e-8.)
Tolerance ToleranceOf(cuda::Element element) {
  return element == cuda::Element::kHalf ? Tolerance{.absolute = 0.0026, .nmse = 3e-7}
                                         : Tolerance{.absolute = 0.02, .nmse = 1.7e-5};
}

class PrefillAttentionTest : public ::testing::TestWithParam<AttentionTestParam> {
 protected:
  void ExpectRowsEqual(const AttentionContext& context,
                       const Bits& part,
                       const Bits& all,
                       int first) {
    EXPECT_TRUE(std::equal(part.begin(), part.end(),
                           all.begin() + static_cast<std::ptrdiff_t>(context.RowSize(first))))
        << "rows from " << first;
  }
};

// One prompt from its start: every size of a tile's last step, some of them with three steps before
// it.
TEST_P(PrefillAttentionTest, AgreesWithTheOracleForEveryNumberOfKeys) {
  Numbers numbers(81);
  SCOPED_TRACE(numbers.Describe());
  AttentionContext context(ShapeOf(GetParam()), numbers);
  for (const int size : {1, 15, 16, 17, 31, 61, 63, 64, 65, 127, 128, 129, 211}) {
    SCOPED_TRACE(::testing::Message() << size << " keys");
    const int segment = context.AddSegment(size);
    const int count = std::min(size, size > 64 ? 7 : 18);
    const std::vector<RowView> views = PlainRows(segment, size - count, count);
    const std::vector<float> query = context.Queries(count);

    const Bits output = context.Prefill(query, 0, views);

    ExpectClose(context.ToDoubles(output), context.Expected(query, views),
                ToleranceOf(context.shape().element));
  }
}

TEST_P(PrefillAttentionTest, AgreesWithTheOracleOverSeveralSegments) {
  Numbers numbers(82);
  SCOPED_TRACE(numbers.Describe());
  AttentionContext context(ShapeOf(GetParam()), numbers);
  const int prompt = context.AddSegment(250, 240);
  const int first = context.AddSegment(41);
  const int empty = context.AddSegment(0);
  const int second = context.AddSegment(17);
  std::vector<RowView> views;
  for (int t = 0; t < 11; ++t) {
    // What a row sees falls and rises; one segment is hidden from all, one from some, two come from
    // behind the row.
    views.push_back({{first, t - 30, 4 * t},
                     {empty, 3, 0},
                     {prompt, 400 + t, 240 - t * 17 % 110},
                     {first, 5, 0},
                     {second, -690 - t % 9, t % 3 == 1 ? 0 : 17 - t}});
  }
  const std::vector<float> query = context.Queries(static_cast<int>(views.size()));

  const Bits output = context.Prefill(query, 0, views);

  ExpectClose(context.ToDoubles(output), context.Expected(query, views),
              ToleranceOf(context.shape().element));
}

TEST_P(PrefillAttentionTest, APromptCutAnywhereGivesTheSameBits) {
  Numbers numbers(83);
  SCOPED_TRACE(numbers.Describe());
  AttentionContext context(ShapeOf(GetParam()), numbers);
  constexpr int kTokens = 83;
  const int segment = context.AddSegment(kTokens);
  const std::vector<float> query = context.Queries(kTokens);
  const Bits together = context.Prefill(query, 0, PlainRows(segment, 0, kTokens));

  EXPECT_EQ(
      context.Prefill(query, 0, PlainRows(segment, 0, kTokens), context.MostTileRows() / 2 + 1),
      together);
  for (const int first : {1, 13, 62, 64, 79}) {
    const int count = std::min(17, kTokens - first);
    ExpectRowsEqual(context, context.Prefill(query, first, PlainRows(segment, first, count)),
                    together, first);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes,
                         PrefillAttentionTest,
                         ::testing::Combine(::testing::Values(64, 128),
                                            ::testing::Values(cuda::Element::kBFloat16,
                                                              cuda::Element::kHalf),
                                            ::testing::Values(1, 3, 4, 5, 8)),
                         AttentionTestName);

class PrefillAttentionRows : public ::testing::TestWithParam<int> {
 protected:
  AttentionShape shape() const { return {.heads = 6, .kv_heads = 2, .head_dim = GetParam()}; }
};

TEST_P(PrefillAttentionRows, ARowHasTheSameBitsAloneAndInCompany) {
  Numbers numbers(84);
  SCOPED_TRACE(numbers.Describe());
  AttentionContext context(shape(), numbers);
  const int a = context.AddSegment(220);
  const int b = context.AddSegment(70);
  std::vector<RowView> views;
  for (int t = 0; t < context.MostTileRows(); ++t) {
    views.push_back(
        {{a, numbers.Below(600), numbers.Below(221)}, {b, -numbers.Below(600), numbers.Below(71)}});
  }
  const std::vector<float> query = context.Queries(static_cast<int>(views.size()));
  const Bits together = context.Prefill(query, 0, views);

  for (int t = 0; t < static_cast<int>(views.size()); ++t) {
    const Bits alone = context.Prefill(query, t, {views[static_cast<std::size_t>(t)]});
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(),
                           together.begin() + static_cast<std::ptrdiff_t>(context.RowSize(t))))
        << "row " << t;
  }
}

// A later token whose value overflowed must not reach the rows before it, not even as zero times
// infinity; nor may a slot that is not written yet.
TEST_P(PrefillAttentionRows, ARowSeesNothingOfLaterTokensInItsTile) {
  Numbers numbers(85);
  SCOPED_TRACE(numbers.Describe());
  AttentionContext context(shape(), numbers);
  constexpr int kTokens = 90;
  const int segment = context.AddSegment(kTokens, 80);  // 80 to 89 hold NaN
  const std::vector<RowView> views = PlainRows(segment, 64, kTokens - 64);
  const std::vector<float> query = context.Queries(static_cast<int>(views.size()));
  const Bits finite = context.Prefill(query, 0, PlainRows(segment, 64, 8));

  context.SetValues(segment, 72, std::numeric_limits<float>::infinity());
  const Bits output = context.Prefill(query, 0, views);

  EXPECT_TRUE(std::equal(finite.begin(), finite.end(), output.begin()));
  const std::vector<double> values = context.ToDoubles(output);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(std::isfinite(values[i]), i < context.RowSize(8)) << "row " << i / context.RowSize();
  }
}

TEST_P(PrefillAttentionRows, RowsThatSeeNothingAreZero) {
  Numbers numbers(86);
  AttentionContext context(shape(), numbers);
  const int segment = context.AddSegment(70);
  const std::vector<RowView> some = {{{segment, 1, 0}}, {{segment, 1, 66}}, {{segment, 1, 0}}};
  const std::vector<float> query = context.Queries(3);

  const Bits output = context.Prefill(query, 0, some);

  EXPECT_TRUE(std::all_of(output.begin(),
                          output.begin() + static_cast<std::ptrdiff_t>(context.RowSize()),
                          [](std::uint16_t x) { return x == 0; }));
  EXPECT_TRUE(std::all_of(output.end() - static_cast<std::ptrdiff_t>(context.RowSize()),
                          output.end(), [](std::uint16_t x) { return x == 0; }));
  EXPECT_EQ(context.Prefill(query, 0, {{{segment, 1, 0}}, {{segment, 1, 0}}}),
            Bits(context.RowSize(2), 0));
  EXPECT_EQ(context.Prefill(query, 0, {{}, {}}), Bits(context.RowSize(2), 0));
}

TEST_P(PrefillAttentionRows, LargeScoresDoNotOverflow) {
  Numbers numbers(87);
  SCOPED_TRACE(numbers.Describe());
  AttentionContext context(shape(), numbers);
  const int segment = context.AddSegment(150);
  std::vector<float> query = context.Queries(5);
  for (float& x : query) {
    x *= 1e4f;
  }
  const std::vector<RowView> views = PlainRows(segment, 145, 5);

  const Bits output = context.Prefill(query, 0, views);

  for (const double value : context.ToDoubles(output)) {
    ASSERT_TRUE(std::isfinite(value));
    ASSERT_LT(std::abs(value), 6);  // one key takes all the weight: a result is a value
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDim, PrefillAttentionRows, ::testing::Values(64, 128));

TEST(PrefillAttentionShapes, ShapesThatNoKernelHasAreRefused) {
  const cuda::AttentionParams good{.pool = {.kv_heads = 2}, .heads = 6, .head_dim = 64};
  const auto launch = [](const cuda::AttentionParams& attention) {
    return KernelsUnderTest().prefill_attention({.attention = attention}, {});
  };
  EXPECT_EQ(launch(good), 0);  // no tiles: nothing to do
  cuda::AttentionParams bad = good;
  bad.head_dim = 32;
  EXPECT_NE(launch(bad), 0);
  bad = good;
  bad.pool.kv_heads = 4;
  EXPECT_NE(launch(bad), 0);
  bad = good;
  bad.heads = 2 * (cuda::kTileRows + 1);
  EXPECT_NE(launch(bad), 0);
}

}  // namespace
}  // namespace baton
