#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "kernels/philox.h"
#include "tests/kernels/kernel_test_support.h"

namespace baton {
namespace {

class SelectTokensTest : public KernelTest {
 protected:
  absl::StatusOr<SelectedToken> SelectOne(const std::vector<float>& logits,
                                          const TokenSelection& row) {
    std::vector<SelectedToken> selected(1);
    const Array<float> device_logits(backend(), logits);
    const absl::Status status = backend().SelectTokens(
        {.logits = {device_logits.data(), 1, static_cast<int>(logits.size())},
         .rows = std::span(&row, 1),
         .selected = selected});
    if (!status.ok()) {
      return status;
    }
    return selected[0];
  }

  std::uint32_t Choose(const std::vector<float>& logits, const TokenSelection& row) {
    const absl::StatusOr<SelectedToken> selected = SelectOne(logits, row);
    EXPECT_TRUE(selected.ok()) << selected.status();
    return selected.ok() ? selected->token.value() : 0xffffffffu;
  }

  // The draws at positions 0, 1, ...
  std::vector<std::uint32_t> Draws(const std::vector<float>& logits,
                                   const TokenSelection& row,
                                   int draws) {
    constexpr int kAtOnce = 50;
    const int vocabulary = static_cast<int>(logits.size());
    std::vector<float> repeated;
    for (int i = 0; i < kAtOnce; ++i) {
      repeated.insert(repeated.end(), logits.begin(), logits.end());
    }
    const Array<float> device_logits(backend(), repeated);
    std::vector<std::uint32_t> tokens;
    for (int first = 0; first < draws; first += kAtOnce) {
      const int count = std::min(kAtOnce, draws - first);
      std::vector<TokenSelection> rows(static_cast<std::size_t>(count), row);
      std::vector<SelectedToken> selected(rows.size());
      for (int i = 0; i < count; ++i) {
        rows[static_cast<std::size_t>(i)].position = static_cast<std::uint64_t>(first + i);
      }
      const absl::Status status =
          backend().SelectTokens({.logits = {device_logits.data(), count, vocabulary},
                                  .rows = rows,
                                  .selected = selected});
      EXPECT_TRUE(status.ok()) << status;
      for (const SelectedToken& each : selected) {
        tokens.push_back(each.token.value());
      }
    }
    return tokens;
  }

  // How often each token comes in so many draws.
  std::map<std::uint32_t, int> Draw(const std::vector<float>& logits,
                                    const TokenSelection& row,
                                    int draws) {
    std::map<std::uint32_t, int> counts;
    for (const std::uint32_t token : Draws(logits, row, draws)) {
      ++counts[token];
    }
    return counts;
  }

  // Enough that a wrong distribution is seen; the emulator takes a while for each.
  int ManyDraws() const { return IsEmulated() ? 2000 : 20000; }
};

std::vector<float> LogsOf(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) {
    logits.push_back(static_cast<float>(std::log(p)) + 3.0f);
  }
  return logits;
}

TEST_P(SelectTokensTest, GreedyTakesTheLargestAndAmongEqualsTheLowestId) {
  Numbers numbers(61);
  SCOPED_TRACE(numbers.Describe());
  for (const int vocabulary : {1, 2, 15, 16, 17, 255, 256, 257, 1000, 49152}) {
    std::vector<float> logits = numbers.Normals(static_cast<std::size_t>(vocabulary));
    const int at = numbers.Below(vocabulary);
    const int later = at + numbers.Below(vocabulary - at);
    logits[static_cast<std::size_t>(at)] = 100;
    logits[static_cast<std::size_t>(later)] = 100;
    EXPECT_EQ(Choose(logits, {.temperature = 0}), static_cast<std::uint32_t>(at)) << vocabulary;
  }
}

TEST_P(SelectTokensTest, GreedyWorksBelowZeroAndWithImpossibleTokens) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Choose({-inf, -3e38f, -5, -4, -inf}, {.temperature = 0}), 3u);
}

TEST_P(SelectTokensTest, ALogitThatIsNotANumberIsAnErrorWhereverItIs) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const std::size_t at : {0u, 5u, 255u, 256u, 299u}) {
    for (const float bad : {std::nanf(""), -std::nanf(""), inf}) {
      for (const float temperature : {0.0f, 1.0f}) {
        std::vector<float> logits(300, 0.5f);
        logits[at] = bad;
        const absl::StatusOr<SelectedToken> selected =
            SelectOne(logits, {.temperature = temperature});
        EXPECT_TRUE(absl::IsInternal(selected.status()))
            << at << " " << bad << ": " << selected.status();
      }
    }
  }
  EXPECT_TRUE(absl::IsInternal(SelectOne({-inf, -inf}, {}).status()));
  const std::vector<TokenId> all = {TokenId(0), TokenId(1)};
  EXPECT_TRUE(absl::IsInternal(SelectOne({1, 2}, {.temperature = 0, .banned = all}).status()));
}

TEST_P(SelectTokensTest, DrawsFollowTheDistribution) {
  const std::vector<double> probabilities = {0.05, 0.4, 0.25, 0.3};
  const int draws = ManyDraws();
  const std::map<std::uint32_t, int> counts = Draw(LogsOf(probabilities), {.seed = 7}, draws);
  for (std::uint32_t token = 0; token < 4; ++token) {
    const double p = probabilities[token];
    EXPECT_NEAR(counts.at(token), draws * p, 5 * std::sqrt(draws * p * (1 - p))) << token;
  }
}

TEST_P(SelectTokensTest, TemperatureFlattensTheDistribution) {
  // At temperature 2 the odds of 9 to 1 become 3 to 1.
  const int draws = ManyDraws();
  const std::map<std::uint32_t, int> counts =
      Draw(LogsOf({0.9, 0.1}), {.temperature = 2, .seed = 8}, draws);
  EXPECT_NEAR(counts.at(0), draws * 0.75, 5 * std::sqrt(draws * 0.75 * 0.25));
}

TEST_P(SelectTokensTest, ATinyTemperatureIsGreedyAndNotNaN) {
  for (const float temperature : {1e-5f, 1e-30f, std::numeric_limits<float>::denorm_min()}) {
    EXPECT_EQ(Draw({1, 3, 3.5f, 2}, {.temperature = temperature, .seed = 9}, 50).size(), 1u);
    EXPECT_EQ(Choose({1, 3, 3.5f, 2}, {.temperature = temperature, .seed = 9}), 2u);
  }
}

TEST_P(SelectTokensTest, FiltersKeepWhatTheyShould) {
  const std::vector<float> logits = LogsOf({0.05, 0.4, 0.25, 0.3});
  const auto kept = [&](const TokenSelection& row) {
    std::vector<std::uint32_t> tokens;
    for (const auto& [token, count] : Draw(logits, row, IsEmulated() ? 150 : 400)) {
      tokens.push_back(token);
    }
    return tokens;
  };
  using Tokens = std::vector<std::uint32_t>;
  EXPECT_EQ(kept({}), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(kept({.top_k = 1}), (Tokens{1}));
  EXPECT_EQ(kept({.top_k = 2}), (Tokens{1, 3}));
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
}

// Against sorting everything, for spread, peaked and flat logits and many equals.
TEST_P(SelectTokensTest, TopPDrawsWhatAFullSortWouldGive) {
  Numbers numbers(63);
  SCOPED_TRACE(numbers.Describe());
  constexpr std::size_t kVocabulary = 3000;
  for (const float spread : {0.0f, 1e-4f, 0.3f, 3.0f, 30.0f}) {
    std::vector<float> logits = numbers.Normals(kVocabulary);
    for (std::size_t i = 0; i < kVocabulary; ++i) {
      logits[i] = spread * (i % 3 == 0 ? std::round(logits[i]) : logits[i]) - 7;
    }
    std::vector<std::uint32_t> order(kVocabulary);
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return logits[a] > logits[b]; });
    double total = 0;
    std::vector<double> before(kVocabulary);  // of the token itself, by id: weight of the likelier
    std::vector<double> weight(kVocabulary);
    for (const std::uint32_t token : order) {
      weight[token] = std::exp(static_cast<double>(logits[token] - logits[order[0]]));
      before[token] = total;
      total += weight[token];
    }
    for (const float top_p : {0.001f, 0.3f, 0.9f, 0.999f}) {
      double kept = 0;
      for (const std::uint32_t token : order) {
        kept += kept < static_cast<double>(top_p) * total ? weight[token] : 0;
      }
      const std::vector<std::uint32_t> tokens = Draws(logits, {.top_p = top_p, .seed = 9}, 50);
      for (std::uint64_t position = 0; position < tokens.size(); ++position) {
        const std::uint32_t token = tokens[position];

        // Float weights move the bounds between tokens by some 1e-6 of the whole.
        const double target = UniformDraw(9, position) * kept;
        EXPECT_LE(before[token] - 1e-5 * total, target) << spread << " " << top_p;
        EXPECT_GE(before[token] + weight[token] + 1e-5 * total, target) << spread << " " << top_p;
        EXPECT_LE(before[token], kept + 1e-5 * total);
      }
    }
  }
}

TEST_P(SelectTokensTest, TopKAmongEqualsKeepsTheLowestIds) {
  const std::vector<float> logits(50, 1.0f);
  for (const auto& [token, count] : Draw(logits, {.top_k = 3}, 200)) {
    EXPECT_LT(token, 3u);
  }
}

TEST_P(SelectTokensTest, PenaltiesBiasAndBansChangeTheLogits) {
  const std::vector<TokenId> history = {TokenId(0), TokenId(1), TokenId(2), TokenId(2), TokenId(2)};
  TokenSelection row{.temperature = 0, .history = history, .prompt_tokens = 2};
  // Repetition counts the prompt: 3 / 2 < 2, and a negative logit is multiplied.
  row.repetition_penalty = 2;
  EXPECT_EQ(Choose({3, -1, 2, 1.6f}, row), 3u);
  EXPECT_EQ(Choose({-1, -1.5f, -3, -1.9f}, row), 3u);
  row.repetition_penalty = 1;
  // Presence and frequency count the output only: token 2 three times.
  row.presence_penalty = 1;
  EXPECT_EQ(Choose({2, 1, 2.5f, 1}, row), 0u);
  EXPECT_EQ(Choose({2, 1, 3.1f, 1}, row), 2u);
  row.presence_penalty = 0;
  row.frequency_penalty = 1;
  EXPECT_EQ(Choose({2, 1, 4.9f, 1}, row), 0u);
  EXPECT_EQ(Choose({2, 1, 5.1f, 1}, row), 2u);
  row.frequency_penalty = -1;
  EXPECT_EQ(Choose({2, 1, -0.9f, 1}, row), 2u);
  row.frequency_penalty = 0;

  const std::vector<LogitBias> bias = {{TokenId(3), 10.0f}, {TokenId(0), -1.0f}};
  row.logit_bias = bias;
  EXPECT_EQ(Choose({2, 1, 0, -7}, row), 3u);
  const std::vector<TokenId> banned = {TokenId(3), TokenId(1)};
  row.banned = banned;
  EXPECT_EQ(Choose({2, 1.5f, 0, -7}, row), 0u);
  // Nothing of it lasts into the next call.
  EXPECT_EQ(Choose({2, 2.5f, 0, -7}, {.temperature = 0}), 1u);
  // Bans alone: whether the largest logit is banned or others are.
  EXPECT_EQ(Choose({2, 2.5f, 0, 9}, {.temperature = 0, .banned = banned}), 0u);
  EXPECT_EQ(Choose({2, 1.5f, 3, -7}, {.temperature = 0, .banned = banned}), 2u);
}

TEST_P(SelectTokensTest, BannedTokensAreNeverDrawn) {
  const std::vector<TokenId> banned = {TokenId(1)};
  EXPECT_EQ(Draw(LogsOf({0.1, 0.8, 0.1}), {.banned = banned}, 500).count(1), 0u);
}

TEST_P(SelectTokensTest, LogprobsAreOfTheModelsOwnDistribution) {
  Numbers numbers(62);
  SCOPED_TRACE(numbers.Describe());
  const std::vector<float> logits = numbers.Normals(333);
  const reference::Row expected = reference::LogSoftmax(ToDoubles(logits));
  const std::vector<LogitBias> bias = {{TokenId(40), 50.0f}};

  const absl::StatusOr<SelectedToken> selected =
      SelectOne(logits, {.temperature = 0.5f, .top_k = 1, .logit_bias = bias, .logprobs = 5});

  ASSERT_TRUE(selected.ok()) << selected.status();
  EXPECT_EQ(selected->token, TokenId(40));
  EXPECT_NEAR(static_cast<double>(selected->logprob), expected[40], 1e-5);
  ASSERT_EQ(selected->alternatives.size(), 5u);
  std::vector<std::uint32_t> order(333);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return logits[a] > logits[b]; });
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(selected->alternatives[i].token.value(), order[i]);
    EXPECT_NEAR(static_cast<double>(selected->alternatives[i].logprob), expected[order[i]], 1e-5);
  }
}

// B29: a token that the filters leave alone has a finite log probability; what was not asked for is
// not computed.
TEST_P(SelectTokensTest, LogprobsAreAbsentUnlessAskedFor) {
  const absl::StatusOr<SelectedToken> without = SelectOne({1, 2}, {.temperature = 0});
  EXPECT_TRUE(without->alternatives.empty());
  EXPECT_EQ(without->logprob, 0.0f);
  const absl::StatusOr<SelectedToken> own = SelectOne({1, 2}, {.top_k = 1, .logprobs = 0});
  EXPECT_TRUE(own->alternatives.empty());
  EXPECT_NEAR(static_cast<double>(own->logprob), -0.313262, 1e-5);
}

TEST_P(SelectTokensTest, AForcedTokenIsTakenAndReported) {
  const std::vector<float> logits = LogsOf({0.5, 0.25, 0.25});
  const absl::StatusOr<SelectedToken> selected =
      SelectOne(logits, {.logprobs = 1, .forced = TokenId(2)});
  EXPECT_EQ(selected->token, TokenId(2));
  EXPECT_NEAR(static_cast<double>(selected->logprob), std::log(0.25), 1e-5);
  EXPECT_EQ(selected->alternatives.at(0).token, TokenId(0));
}

// B27: batching changes no draw. Rows with all kinds of parameters, alone, together, on several
// threads.
TEST_P(SelectTokensTest, ARowDoesNotDependOnTheRowsBesideItNorOnThreads) {
  Numbers numbers(63);
  SCOPED_TRACE(numbers.Describe());
  constexpr int kRows = 40;
  constexpr int kVocabulary = 500;
  const std::vector<float> logits = numbers.Normals(kRows * kVocabulary);
  const std::vector<TokenId> history = {TokenId(3), TokenId(4), TokenId(3), TokenId(499)};
  std::vector<TokenSelection> rows;
  for (int r = 0; r < kRows; ++r) {
    rows.push_back({.temperature = r % 5 == 0 ? 0.0f : 0.7f,
                    .top_p = r % 3 == 0 ? 0.8f : 1.0f,
                    .top_k = r % 4 == 0 ? 20 : 0,
                    .min_p = r % 7 == 0 ? 0.05f : 0.0f,
                    .presence_penalty = r % 2 == 0 ? 0.5f : 0.0f,
                    .history = history,
                    .seed = 99,
                    .position = static_cast<std::uint64_t>(r / 2),
                    .logprobs = r % 6 == 0 ? std::optional<int>(3) : std::nullopt});
  }
  const auto run = [&](Backend& backend, int first, int count) {
    const Array<float> device_logits(backend, logits);
    std::vector<SelectedToken> selected(static_cast<std::size_t>(count));
    const absl::Status status = backend.SelectTokens(
        {.logits =
             TensorView<const float>(device_logits.data(), kRows, kVocabulary).Rows(first, count),
         .rows = std::span(rows).subspan(static_cast<std::size_t>(first),
                                         static_cast<std::size_t>(count)),
         .selected = selected});
    EXPECT_TRUE(status.ok()) << status;
    return selected;
  };
  const std::vector<SelectedToken> together = run(backend(), 0, kRows);
  const std::unique_ptr<Backend> threaded = MakeBackend(3);
  const std::vector<SelectedToken> on_threads = run(*threaded, 0, kRows);

  for (int r = 0; r < kRows; ++r) {
    const SelectedToken alone = run(backend(), r, 1)[0];
    const auto row = static_cast<std::size_t>(r);
    EXPECT_EQ(alone.token, together[row].token) << r;
    EXPECT_EQ(alone.logprob, together[row].logprob) << r;
    EXPECT_EQ(on_threads[row].token, together[row].token) << r;
    EXPECT_EQ(on_threads[row].logprob, together[row].logprob) << r;
  }
}

TEST_P(SelectTokensTest, TheSameSeedAndPositionGiveTheSameTokenAndOthersDoNot) {
  const std::vector<float> logits(1000, 0.0f);
  const std::uint32_t token = Choose(logits, {.seed = 5, .position = 6});
  EXPECT_EQ(Choose(logits, {.seed = 5, .position = 6}), token);
  EXPECT_NE(Choose(logits, {.seed = 6, .position = 6}), token);
  EXPECT_NE(Choose(logits, {.seed = 5, .position = 7}), token);
}

INSTANTIATE_TEST_SUITE_P(On, SelectTokensTest, kEveryBackend, BackendTestName);

}  // namespace
}  // namespace baton
