#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>

#include "kernels/philox.h"
#include "tests/kernels/cuda/sampling_launch.h"
#include "tests/kernels/oracle_comparison.h"

// Sampling on the device against sorting everything in double precision. Weights are floats within
// 3e-7 and sums whole numbers of 2^-44, so that borders between tokens lie within 1e-6 of the whole
// of where they should be; tests allow 1e-5.
namespace baton {
namespace {

using cuda::SamplingError;
using cuda::SamplingRow;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kBorder = 1e-5;

// A row takes the emulator a millisecond, a GPU microseconds.
#ifdef BATON_TEST_ON_GPU
constexpr int kManyDraws = 20000;
#else
constexpr int kManyDraws = 300;
#endif

int Choose(const std::vector<float>& logits, const SamplingCase& one) {
  const SampledRow sampled = SampleOne(logits, one);
  EXPECT_EQ(sampled.result.error, SamplingError::kNone);
  return sampled.result.token;
}

// The token of one row at positions 0, 1, ..., in one launch.
std::vector<int> ChooseOften(const std::vector<float>& logits, SamplingRow row, int draws) {
  std::vector<float> repeated;
  std::vector<SamplingCase> cases;
  for (int i = 0; i < draws; ++i) {
    row.position = static_cast<std::uint64_t>(i);
    cases.push_back({.row = row, .edits = {}});
    repeated.insert(repeated.end(), logits.begin(), logits.end());
  }
  std::vector<int> tokens;
  for (const SampledRow& sampled : Sample(repeated, cases)) {
    EXPECT_EQ(sampled.result.error, SamplingError::kNone);
    tokens.push_back(sampled.result.token);
  }
  return tokens;
}

std::map<int, int> Counts(const std::vector<int>& tokens) {
  std::map<int, int> counts;
  for (const int token : tokens) {
    ++counts[token];
  }
  return counts;
}

std::vector<float> LogsOf(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) {
    logits.push_back(static_cast<float>(std::log(p)) + 3.0f);
  }
  return logits;
}

std::vector<int> LikelyFirst(const std::vector<float>& logits) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  return order;
}

// What of the whole lies before each token in the order in which a draw walks; a token that the
// filters take away has no entry.
struct Walk {
  std::map<int, double> before;
  std::map<int, double> weight;
  double kept = 0;
};

Walk WalkOf(const std::vector<float>& logits, const SamplingRow& row) {
  const std::vector<int> order = LikelyFirst(logits);
  const auto weight_of = [&](int token) {
    const float distance =
        logits[static_cast<std::size_t>(token)] - logits[static_cast<std::size_t>(order[0])];
    return std::exp(static_cast<double>(distance) / static_cast<double>(row.temperature));
  };
  std::vector<int> kept;
  double total = 0;
  for (const int token : order) {
    const bool takes = weight_of(token) >= static_cast<double>(row.min_p) &&
                       (row.top_k == 0 || static_cast<int>(kept.size()) < row.top_k);
    if (takes) {
      kept.push_back(token);
      total += weight_of(token);
    }
  }
  if (row.top_p < 1) {
    double passed = 0;
    std::size_t end = 0;
    while (end < kept.size() && passed < static_cast<double>(row.top_p) * total) {
      passed += weight_of(kept[end++]);
    }
    kept.resize(end);
  } else {
    std::sort(kept.begin(), kept.end());
  }
  Walk walk;
  for (const int token : kept) {
    walk.before[token] = walk.kept;
    walk.weight[token] = weight_of(token);
    walk.kept += weight_of(token);
  }
  return walk;
}

void ExpectDrawsAsTheWalkSays(const std::vector<float>& logits, const SamplingRow& row, int draws) {
  const Walk walk = WalkOf(logits, row);
  const std::vector<int> tokens = ChooseOften(logits, row, draws);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    ASSERT_TRUE(walk.before.contains(tokens[i])) << "position " << i << " token " << tokens[i];
    const double target = UniformDraw(row.seed, i) * walk.kept;
    const double before = walk.before.at(tokens[i]);
    ASSERT_LE(before - kBorder * walk.kept, target) << "position " << i;
    ASSERT_GE(before + walk.weight.at(tokens[i]) + kBorder * walk.kept, target) << "position " << i;
  }
}

TEST(SelectTokensKernel, GreedyTakesTheLargestAndAmongEqualsTheLowestId) {
  Numbers numbers(171);
  SCOPED_TRACE(numbers.Describe());
  for (const int vocabulary : {1, 2, 15, 16, 17, 31, 2047, 2048, 2049, 8209, 49152}) {
    std::vector<float> logits = numbers.Normals(static_cast<std::size_t>(vocabulary));
    const int at = numbers.Below(vocabulary);
    const int later = at + numbers.Below(vocabulary - at);
    logits[static_cast<std::size_t>(at)] = 100;
    logits[static_cast<std::size_t>(later)] = 100;
    EXPECT_EQ(Choose(logits, {.row = {.temperature = 0}}), at) << vocabulary;
  }
}

TEST(SelectTokensKernel, MinusZeroAndZeroAreEqual) {
  EXPECT_EQ(Choose({-1, -0.0f, 0.0f}, {.row = {.temperature = 0}}), 1);
  EXPECT_EQ(Choose({-1, 0.0f, -0.0f}, {.row = {.temperature = 0}}), 1);
  EXPECT_EQ(Counts(ChooseOften({-1, -0.0f, 0.0f}, {.top_k = 1}, 20)),
            (std::map<int, int>{{1, 20}}));
}

TEST(SelectTokensKernel, GreedyWorksBelowZeroAndWithImpossibleTokens) {
  EXPECT_EQ(Choose({-kInf, -3e38f, -5, -4, -kInf}, {.row = {.temperature = 0}}), 3);
  EXPECT_EQ(Choose({3e38f, -3e38f, -kInf}, {.row = {.top_p = 0.5f}}), 0);
}

TEST(SelectTokensKernel, ALogitThatIsNotANumberIsAnErrorWhereverItIs) {
  for (const std::size_t at : {0u, 5u, 255u, 2048u, 2099u}) {
    for (const float bad : {std::nanf(""), -std::nanf(""), kInf}) {
      std::vector<float> logits(2100, 0.5f);
      logits[at] = bad;
      for (const SamplingRow& row : {SamplingRow{.temperature = 0}, SamplingRow{.top_k = 3},
                                     SamplingRow{.forced = 1, .logprobs = 1}}) {
        EXPECT_EQ(SampleOne(logits, {.row = row}).result.error, SamplingError::kNotFinite)
            << at << " " << bad;
      }
    }
  }
  EXPECT_EQ(SampleOne({-kInf, -kInf}, {.row = {}}).result.error, SamplingError::kNoPossibleToken);
  EXPECT_EQ(SampleOne({-kInf, kInf}, {.row = {}}).result.error, SamplingError::kNotFinite);
}

TEST(SelectTokensKernel, EditsThatLeaveNothingOrMakeInfinityAreErrors) {
  const std::vector<cuda::LogitEdit> all = {{.token = 0, .banned = 1}, {.token = 1, .banned = 1}};
  for (const float temperature : {0.0f, 1.0f}) {
    const SamplingRow row{.temperature = temperature};
    EXPECT_EQ(SampleOne({1, 2}, {row, all}).result.error, SamplingError::kNoPossibleToken);
    EXPECT_EQ(SampleOne({3e38f, 2}, {row, {{.token = 0, .bias = 3e38f}}}).result.error,
              SamplingError::kNotFinite);
  }
}

TEST(SelectTokensKernel, AnErrorInOneRowLeavesTheOthersAlone) {
  const std::vector<SampledRow> rows = Sample(
      {1, 2, std::nanf(""), 2, 3, 2},
      {{.row = {.temperature = 0}}, {.row = {.temperature = 0}}, {.row = {.temperature = 0}}});
  EXPECT_EQ(rows[0].result.token, 1);
  EXPECT_EQ(rows[1].result.error, SamplingError::kNotFinite);
  EXPECT_EQ(rows[2].result.error, SamplingError::kNone);
  EXPECT_EQ(rows[2].result.token, 0);
}

// Within five standard deviations.
TEST(SelectTokensKernel, DrawsFollowTheDistribution) {
  const std::vector<double> probabilities = {0.05, 0.4, 0.25, 0.3};
  for (const float top_p : {1.0f, 0.9999f}) {  // by id, and likely first
    const std::map<int, int> counts =
        Counts(ChooseOften(LogsOf(probabilities), {.top_p = top_p, .seed = 7}, kManyDraws));
    for (int token = 0; token < 4; ++token) {
      const double p = probabilities[static_cast<std::size_t>(token)];
      EXPECT_NEAR(counts.at(token), kManyDraws * p, 5 * std::sqrt(kManyDraws * p * (1 - p)))
          << token;
    }
  }
}

TEST(SelectTokensKernel, TemperatureFlattensTheDistribution) {
  // At temperature 2 the odds of 9 to 1 become 3 to 1.
  const std::map<int, int> counts =
      Counts(ChooseOften(LogsOf({0.9, 0.1}), {.temperature = 2, .seed = 8}, kManyDraws));
  EXPECT_NEAR(counts.at(0), kManyDraws * 0.75, 5 * std::sqrt(kManyDraws * 0.75 * 0.25));
}

TEST(SelectTokensKernel, AnyTemperatureIsFineAndATinyOneIsGreedy) {
  using Tokens = std::map<int, int>;
  for (const float temperature : {1e-5f, 1e-30f, std::numeric_limits<float>::denorm_min()}) {
    for (const float top_p : {1.0f, 0.9f}) {
      const SamplingRow row{.temperature = temperature, .top_p = top_p, .seed = 9};
      EXPECT_EQ(Counts(ChooseOften({1, 3, 3.5f, 2, -kInf}, row, 5)), (Tokens{{2, 5}}));
    }
  }
  const SamplingRow flat{.temperature = std::numeric_limits<float>::max(), .seed = 9};
  constexpr int kDraws = 150;
  const std::map<int, int> counts = Counts(ChooseOften({1, 3, 3.5f, -kInf}, flat, kDraws));
  for (int token = 0; token < 3; ++token) {
    EXPECT_NEAR(counts.at(token), kDraws / 3.0, 5 * std::sqrt(kDraws * 2 / 9.0)) << token;
  }
  EXPECT_EQ(counts.count(3), 0u);
}

TEST(SelectTokensKernel, FiltersKeepWhatTheyShould) {
  const std::vector<float> logits = LogsOf({0.05, 0.4, 0.25, 0.3});
  const auto kept = [&](const SamplingRow& row) {
    std::vector<int> tokens;
    for (const auto& [token, count] : Counts(ChooseOften(logits, row, 50))) {
      tokens.push_back(token);
    }
    return tokens;
  };
  using Tokens = std::vector<int>;
  EXPECT_EQ(kept({}), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(kept({.top_k = 1}), (Tokens{1}));
  EXPECT_EQ(kept({.top_k = 2}), (Tokens{1, 3}));
  EXPECT_EQ(kept({.top_k = 4}), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(kept({.top_k = 99}), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(kept({.min_p = 0.7f}), (Tokens{1, 3}));
  EXPECT_EQ(kept({.min_p = 1.0f}), (Tokens{1}));
  EXPECT_EQ(kept({.top_p = 0.39f}), (Tokens{1}));
  EXPECT_EQ(kept({.top_p = 0.5f}), (Tokens{1, 3}));
  EXPECT_EQ(kept({.top_p = 0.8f}), (Tokens{1, 2, 3}));
  EXPECT_EQ(kept({.top_p = 1e-6f}), (Tokens{1}));
  // After top_k 2 the rest is 4/7 and 3/7: top_p counts what is left.
  EXPECT_EQ(kept({.top_p = 0.56f, .top_k = 2}), (Tokens{1}));
  EXPECT_EQ(kept({.top_p = 0.58f, .top_k = 2}), (Tokens{1, 3}));
  // 0.4 of 0.95 passes what min_p left.
  EXPECT_EQ(kept({.top_p = 0.42f, .min_p = 0.5f}), (Tokens{1}));
  EXPECT_EQ(kept({.top_p = 0.43f, .min_p = 0.5f}), (Tokens{1, 3}));
}

TEST(SelectTokensKernel, TopKAmongEqualsKeepsTheLowestIds) {
  // More equals than one list of the kernel holds: 3 of 50 and 700 of 2000.
  for (const auto& [size, top_k] : {std::pair{50, 3}, std::pair{2000, 700}}) {
    const std::vector<float> logits(static_cast<std::size_t>(size), 1.0f);
    int largest = 0;
    for (const int token : ChooseOften(logits, {.top_k = top_k}, 20)) {
      EXPECT_LT(token, top_k);
      largest = std::max(largest, token);
    }
    EXPECT_GT(largest, top_k / 2);
  }
}

struct Shape {
  const char* name;
  float spread;
};

// Spread, peaked and flat logits, many of them equal, through every combination of the filters, at
// sizes off the grid of the kernel.
class SelectTokensWalk : public ::testing::TestWithParam<Shape> {};

TEST_P(SelectTokensWalk, DrawsWhatSortingEverythingWouldGive) {
  Numbers numbers(172);
  SCOPED_TRACE(numbers.Describe());
  for (const std::size_t vocabulary : {1u, 17u, 3001u}) {
    std::vector<float> logits = numbers.Normals(vocabulary);
    for (std::size_t i = 0; i < vocabulary; ++i) {
      logits[i] = GetParam().spread * (i % 3 == 0 ? std::round(logits[i]) : logits[i]) - 7;
    }
    for (const float top_p : {1.0f, 0.001f, 0.9f}) {
      for (const int top_k : {0, 13, 600}) {
        for (const float min_p : {0.0f, 0.021f}) {
          SCOPED_TRACE(testing::Message() << "V " << vocabulary << " top_p " << top_p << " top_k "
                                          << top_k << " min_p " << min_p);
          ExpectDrawsAsTheWalkSays(logits,
                                   {.temperature = 0.8f,
                                    .top_p = top_p,
                                    .min_p = min_p,
                                    .top_k = top_k,
                                    .seed = 90 + vocabulary},
                                   vocabulary < 100 ? 2 : 5);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes,
                         SelectTokensWalk,
                         ::testing::Values(Shape{"equal", 0.0f},
                                           Shape{"nearly_equal", 1e-4f},
                                           Shape{"flat", 0.3f},
                                           Shape{"spread", 3.0f},
                                           Shape{"peaked", 30.0f}),
                         [](const auto& shape) { return shape.param.name; });

// Groups of equals larger than a list, next to each other and to single tokens.
TEST(SelectTokensKernel, LargeGroupsOfEqualsAreWalkedById) {
  std::vector<float> logits;
  for (int i = 0; i < 5003; ++i) {
    logits.push_back(i % 2 == 0 ? 1.0f : i % 7 == 0 ? std::nextafter(1.0f, 2.0f) : -2.0f);
  }
  for (const float top_p : {0.2f, 0.7f, 0.99f}) {
    ExpectDrawsAsTheWalkSays(logits, {.top_p = top_p, .seed = 17}, 12);
  }
  ExpectDrawsAsTheWalkSays(logits, {.top_p = 0.9f, .top_k = 2222, .seed = 18}, 12);
}

TEST(SelectTokensKernel, AVocabularyOf256kWorks) {
  Numbers numbers(173);
  SCOPED_TRACE(numbers.Describe());
  std::vector<float> logits = numbers.Normals(262147);  // Gemma's and three
  for (float& logit : logits) {
    logit *= 2.5f;
  }
  ExpectDrawsAsTheWalkSays(logits, {.seed = 1}, 3);
  ExpectDrawsAsTheWalkSays(logits, {.top_p = 0.95f, .top_k = 100000, .seed = 2}, 3);
  ExpectDrawsAsTheWalkSays(std::vector<float>(262147, -1.5f), {.top_p = 0.75f, .seed = 3}, 2);
}

TEST(SelectTokensKernel, PenaltiesBiasAndBansChangeTheLogits) {
  // History 0, 1, then 2 three times as output.
  const std::vector<cuda::LogitEdit> history = {{.token = 0, .in_history = 1},
                                                {.token = 1, .in_history = 1},
                                                {.token = 2, .output_count = 3, .in_history = 1}};
  SamplingRow row{.temperature = 0, .repetition_penalty = 2};
  // Repetition counts the prompt: 3 / 2 < 1.6, and a negative logit is multiplied.
  EXPECT_EQ(Choose({3, -1, 2, 1.6f}, {row, history}), 3);
  EXPECT_EQ(Choose({-1, -1.5f, -3, -1.9f}, {row, history}), 3);
  row.repetition_penalty = 1;
  // Presence and frequency count the output only: token 2 three times.
  row.presence_penalty = 1;
  EXPECT_EQ(Choose({2, 1, 2.5f, 1}, {row, history}), 0);
  EXPECT_EQ(Choose({2, 1, 3.1f, 1}, {row, history}), 2);
  row.presence_penalty = 0;
  row.frequency_penalty = 1;
  EXPECT_EQ(Choose({2, 1, 4.9f, 1}, {row, history}), 0);
  EXPECT_EQ(Choose({2, 1, 5.1f, 1}, {row, history}), 2);
  row.frequency_penalty = -1;
  EXPECT_EQ(Choose({2, 1, -0.9f, 1}, {row, history}), 2);
  row.frequency_penalty = 0;

  std::vector<cuda::LogitEdit> bias = {{.token = 3, .bias = 10}, {.token = 0, .bias = -1}};
  EXPECT_EQ(Choose({2, 1, 0, -7}, {row, bias}), 3);
  bias[0].banned = 1;
  bias.push_back({.token = 1, .banned = 1});
  EXPECT_EQ(Choose({2, 1.5f, 0, -7}, {row, bias}), 0);
}

TEST(SelectTokensKernel, BannedTokensAreNeverDrawn) {
  std::vector<float> logits;
  std::vector<SamplingCase> cases;
  for (int i = 0; i < 40; ++i) {
    const std::vector<float> row = LogsOf({0.1, 0.8, 0.1});
    logits.insert(logits.end(), row.begin(), row.end());
    cases.push_back(
        {.row = {.position = static_cast<std::uint64_t>(i)}, .edits = {{.token = 1, .banned = 1}}});
  }
  for (const SampledRow& sampled : Sample(logits, cases)) {
    EXPECT_NE(sampled.result.token, 1);
  }
}

TEST(SelectTokensKernel, LogprobsAreOfTheModelsOwnDistribution) {
  Numbers numbers(174);
  SCOPED_TRACE(numbers.Describe());
  // More alternatives than one list of the kernel holds, impossible tokens and equals among them.
  for (const int wanted : {0, 5, 1200}) {
    std::vector<float> logits = numbers.Normals(1301);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      logits[i] = i % 5 == 0 ? -kInf : i % 3 == 0 ? std::round(logits[i]) : logits[i];
    }
    const reference::Row expected = reference::LogSoftmax(ToDoubles(logits));

    const SampledRow sampled =
        SampleOne(logits, {.row = {.temperature = 0.5f, .top_k = 1, .logprobs = wanted},
                           .edits = {{.token = 41, .bias = 50}}});

    EXPECT_EQ(sampled.result.token, 41);
    EXPECT_NEAR(static_cast<double>(sampled.result.logprob), expected[41], 1e-5);
    std::vector<int> order = LikelyFirst(logits);
    order.resize(static_cast<std::size_t>(wanted));
    EXPECT_EQ(sampled.alternatives, order);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const double of_token = expected[static_cast<std::size_t>(order[i])];
      if (std::isinf(of_token)) {
        ASSERT_EQ(sampled.logprobs[i], -kInf) << i;
      } else {
        ASSERT_NEAR(static_cast<double>(sampled.logprobs[i]), of_token, 1e-5) << i;
      }
    }
  }
}

TEST(SelectTokensKernel, LogprobsAreAbsentUnlessAskedFor) {
  const std::vector<SampledRow> rows =
      Sample({1, 2, 1, 2, 1, 2}, {{.row = {.temperature = 0}},
                                  {.row = {.top_k = 1, .logprobs = 0}},
                                  {.row = {.temperature = 0, .logprobs = 2}}});
  EXPECT_EQ(rows[0].result.logprob, 0.0f);
  EXPECT_EQ(rows[0].alternatives, (std::vector<int>{-1, -1}));
  EXPECT_NEAR(static_cast<double>(rows[1].result.logprob), -0.313262, 1e-5);
  EXPECT_EQ(rows[1].alternatives, (std::vector<int>{-1, -1}));
  EXPECT_EQ(rows[2].alternatives, (std::vector<int>{1, 0}));
}

TEST(SelectTokensKernel, AForcedTokenIsTakenAndReported) {
  const SampledRow sampled =
      SampleOne(LogsOf({0.5, 0.25, 0.25}),
                {.row = {.forced = 2, .logprobs = 1}, .edits = {{.token = 2, .banned = 1}}});
  EXPECT_EQ(sampled.result.token, 2);
  EXPECT_NEAR(static_cast<double>(sampled.result.logprob), std::log(0.25), 1e-5);
  EXPECT_EQ(sampled.alternatives, (std::vector<int>{0}));
}

// Rows with all kinds of parameters, together and alone, on 16 bytes and not, twice: one result.
TEST(SelectTokensKernel, ARowDependsOnNothingButItself) {
  Numbers numbers(175);
  SCOPED_TRACE(numbers.Describe());
  constexpr std::size_t kRows = 24;
  constexpr std::size_t kVocabulary = 2504;
  const std::vector<float> logits = numbers.Normals(kRows * kVocabulary);
  std::vector<SamplingCase> cases;
  for (std::size_t r = 0; r < kRows; ++r) {
    cases.push_back({.row = {.temperature = r % 5 == 0 ? 0.0f : 0.7f,
                             .top_p = r % 3 == 0 ? 0.8f : 1.0f,
                             .min_p = r % 7 == 0 ? 0.05f : 0.0f,
                             .top_k = r % 4 == 0 ? 20 : 0,
                             .presence_penalty = 0.5f,
                             .logprobs = r % 6 == 0 ? 3 : -1,
                             .seed = 99,
                             .position = r / 2}});
    if (r % 2 == 0) {
      cases[r].edits = {{.token = 3, .output_count = 2, .in_history = 1}, {.token = 9, .bias = 2}};
    }
  }
  const std::vector<SampledRow> together = Sample(logits, cases);
  const std::vector<SampledRow> again = Sample(logits, cases);
  const std::vector<SampledRow> unaligned = Sample(logits, cases, kVocabulary + 1);
  for (std::size_t r = 0; r < kRows; ++r) {
    const std::vector<float> own(&logits[r * kVocabulary], &logits[r * kVocabulary] + kVocabulary);
    const SampledRow alone = SampleOne(own, cases[r]);
    const std::size_t columns = alone.alternatives.size();
    for (const SampledRow* other : {&together[r], &again[r], &unaligned[r]}) {
      EXPECT_EQ(std::memcmp(&alone.result, &other->result, sizeof(alone.result)), 0) << r;
      for (std::size_t i = 0; i < columns; ++i) {
        EXPECT_EQ(alone.alternatives[i], other->alternatives[i]) << r;
        EXPECT_EQ(alone.logprobs[i], other->logprobs[i]) << r;
      }
    }
  }
}

TEST(SelectTokensKernel, TheSameSeedAndPositionGiveTheSameTokenAndOthersDoNot) {
  const std::vector<float> logits(1000, 0.0f);
  const int token = Choose(logits, {.row = {.seed = 5, .position = 6}});
  EXPECT_EQ(Choose(logits, {.row = {.seed = 5, .position = 6}}), token);
  EXPECT_NE(Choose(logits, {.row = {.seed = 6, .position = 6}}), token);
  EXPECT_NE(Choose(logits, {.row = {.seed = 5, .position = 7}}), token);
}

TEST(SelectTokensKernel, NoRowsIsNothingToDo) {
  EXPECT_EQ(KernelsUnderTest().select_tokens({.vocabulary = 8}, cuda::StreamHandle{}), 0);
}

}  // namespace
}  // namespace baton
