#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/cuda/attention_test_support.h"

namespace baton {
namespace {

// All arithmetic is in float, only the result is rounded. Seen beyond that rounding over this
// suite: 1.2e-7 absolute.
Tolerance ToleranceOf(cuda::Element element) {
  Tolerance tolerance = element == cuda::Element::kHalf ? kRoundedOnceToHalf : kRoundedOnce;
  tolerance.absolute = 1e-6;
  return tolerance;
}

// Sizes around a block, a step of the kernel and the first cuts of a row.
constexpr int kSizes[] = {1, 2, 15, 16, 17, 31, 61, 63, 64, 65, 127, 128, 129, 257, 389};

class DecodeAttentionTest : public ::testing::TestWithParam<AttentionTestParam> {};

TEST_P(DecodeAttentionTest, AgreesWithTheOracleForEveryNumberOfKeys) {
  Numbers numbers(71);
  SCOPED_TRACE(numbers.Describe());
  AttentionContext context(ShapeOf(GetParam()), numbers);
  std::vector<RowView> views;
  for (const int size : kSizes) {
    views.push_back({{context.AddSegment(size), size - 1, size}});
  }
  const std::vector<float> query = context.Queries(static_cast<int>(views.size()));

  const Bits output = context.Decode(query, 0, views);

  ExpectClose(context.ToDoubles(output), context.Expected(query, views),
              ToleranceOf(context.shape().element));
}

// The shared-cache case: several segments at distances that are not their lengths, some only in
// part, some not at all, some from before their start; cuts fall inside entries and between them.
TEST_P(DecodeAttentionTest, AgreesWithTheOracleOverSeveralSegments) {
  Numbers numbers(72);
  SCOPED_TRACE(numbers.Describe());
  AttentionContext context(ShapeOf(GetParam()), numbers);
  const int prompt = context.AddSegment(210, 200);
  const int first = context.AddSegment(41);
  const int second = context.AddSegment(17);
  const int empty = context.AddSegment(0);
  const std::vector<RowView> views = {
      {{prompt, 257, 200}, {first, 57, 41}, {second, 16, 17}},
      {{second, 57, 17}, {first, 40, 41}, {prompt, 207, 200}},
      {{prompt, 207, 64}, {second, 57, 0}, {first, 40, 7}},
      {{second, 699, 1}},
      {{first, -30, 40}, {empty, 9, 0}, {prompt, 3, 129}},
      {{first, 3, 0}, {second, -699, 16}},
      {{prompt, 5, 3}, {second, 5, 3}, {first, 5, 3}},
      {{prompt, 1, 200}, {prompt, -2, 190}},
  };
  const std::vector<float> query = context.Queries(static_cast<int>(views.size()));

  const Bits output = context.Decode(query, 0, views);

  ExpectClose(context.ToDoubles(output), context.Expected(query, views),
              ToleranceOf(context.shape().element));
}

TEST_P(DecodeAttentionTest, ARowHasTheSameBitsAloneAndInCompany) {
  Numbers numbers(73);
  SCOPED_TRACE(numbers.Describe());
  AttentionContext context(ShapeOf(GetParam()), numbers);
  const int a = context.AddSegment(200);
  const int b = context.AddSegment(33);
  std::vector<RowView> views;
  for (int t = 0; t < 5; ++t) {
    views.push_back({{a, numbers.Below(600), 1 + numbers.Below(200)}, {b, t, numbers.Below(34)}});
  }
  const std::vector<float> query = context.Queries(static_cast<int>(views.size()));
  const Bits together = context.Decode(query, 0, views, 7);
  const Bits reversed = context.DecodeInOrder(query, views, {4, 3, -1, 2, 1, -1, 0}, 3);

  EXPECT_EQ(reversed, together);
  for (int t = 0; t < 5; ++t) {
    const Bits alone = context.Decode(query, t, {views[static_cast<std::size_t>(t)]});
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(),
                           together.begin() + static_cast<std::ptrdiff_t>(context.RowSize(t))))
        << "row " << t;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes,
                         DecodeAttentionTest,
                         ::testing::Combine(::testing::Values(64, 128),
                                            ::testing::Values(cuda::Element::kBFloat16,
                                                              cuda::Element::kHalf),
                                            ::testing::Values(1, 2, 3, 4, 5, 8, 9)),
                         AttentionTestName);

constexpr AttentionShape kSmall{.heads = 6, .kv_heads = 2, .head_dim = 64};

TEST(DecodeAttentionRows, PaddingIsLeftAloneAndRowsThatSeeNothingAreZero) {
  Numbers numbers(74);
  AttentionContext context(kSmall, numbers);
  const int segment = context.AddSegment(20);
  const std::vector<RowView> views = {
      {{segment, 19, 20}}, {}, {{segment, 4, 0}}, {{segment, 4, 5}}, {{segment, 4, 5}}};
  const std::vector<float> query = context.Queries(5);

  const Bits output = context.DecodeInOrder(query, views, {-1, 2, 0, -1, 1, 4}, 2);

  const auto row = [&](int t) {
    const auto first = output.begin() + static_cast<std::ptrdiff_t>(context.RowSize(t));
    return Bits(first, first + static_cast<std::ptrdiff_t>(context.RowSize()));
  };
  EXPECT_EQ(row(1), Bits(context.RowSize(), 0));
  EXPECT_EQ(row(2), Bits(context.RowSize(), 0));
  EXPECT_EQ(row(3), Bits(context.RowSize(), 0xffff));
  EXPECT_EQ(row(0), context.Decode(query, 0, {views[0]}));
  EXPECT_EQ(row(4), context.Decode(query, 4, {views[4]}));
}

TEST(DecodeAttentionRows, AContextThatTheMostSplitsCannotCutToTheFewestTokensStaysExact) {
  Numbers numbers(75);
  SCOPED_TRACE(numbers.Describe());
  AttentionContext context({.heads = 1, .kv_heads = 1, .head_dim = 64}, numbers, 600);
  constexpr int kTokens = cuda::kMaxSplits * cuda::kFewestTokensOfSplit + 1003;
  const int segment = context.AddSegment(kTokens);
  const std::vector<RowView> views = {{{segment, 600, kTokens}}};
  const std::vector<float> query = context.Queries(1);

  const Bits output = context.Decode(query, 0, views);

  ExpectClose(context.ToDoubles(output), context.Expected(query, views),
              ToleranceOf(context.shape().element));
}

TEST(DecodeAttentionRows, ARowThatNeedsMoreSplitsThanTheGridHasIsNotANumber) {
  Numbers numbers(78);
  AttentionContext context(kSmall, numbers);
  const int segment = context.AddSegment(400);
  const std::vector<RowView> views = {{{segment, 399, 400}}, {{segment, 255, 256}}};
  const std::vector<float> query = context.Queries(2);

  const std::vector<double> output = context.ToDoubles(context.Decode(query, 0, views, 2));

  for (std::size_t i = 0; i < output.size(); ++i) {
    ASSERT_EQ(std::isnan(output[i]), i < context.RowSize()) << i;
  }
}

TEST(DecodeAttentionRows, ATokenThatARowDoesNotSeeIsNotEvenRead) {
  Numbers numbers(76);
  AttentionContext context(kSmall, numbers);
  const int segment = context.AddSegment(60);
  const std::vector<RowView> views = {{{segment, 30, 31}}};
  const std::vector<float> query = context.Queries(1);
  const Bits before = context.Decode(query, 0, views);

  context.SetValues(segment, 31, std::numeric_limits<float>::infinity());

  EXPECT_EQ(context.Decode(query, 0, views), before);
}

TEST(DecodeAttentionRows, LargeScoresDoNotOverflow) {
  Numbers numbers(77);
  SCOPED_TRACE(numbers.Describe());
  AttentionContext context(kSmall, numbers);
  const int segment = context.AddSegment(290);
  std::vector<float> query = context.Queries(1);
  for (float& x : query) {
    x *= 1e4f;  // one key takes all the weight
  }
  const std::vector<RowView> views = {{{segment, 289, 290}}};

  const Bits output = context.Decode(query, 0, views);

  ExpectClose(context.ToDoubles(output), context.Expected(query, views),
              ToleranceOf(context.shape().element));
}

TEST(DecodeAttentionRows, ShapesThatNoKernelHasAreRefused) {
  const cuda::AttentionParams good{.pool = {.kv_heads = 2}, .heads = 6, .head_dim = 64};
  const auto launch = [](const cuda::AttentionParams& attention, int splits) {
    return KernelsUnderTest().decode_attention({.attention = attention, .splits = splits}, {});
  };
  EXPECT_EQ(launch(good, 1), 0);  // no rows: nothing to do
  cuda::AttentionParams bad = good;
  bad.head_dim = 80;
  EXPECT_NE(launch(bad, 1), 0);
  bad = good;
  bad.heads = 7;
  EXPECT_NE(launch(bad, 1), 0);
  EXPECT_NE(launch(good, 0), 0);
  EXPECT_NE(launch(good, cuda::kMaxSplits + 1), 0);
}

}  // namespace
}  // namespace baton
