#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/cuda/sampling_launch.h"
#include "tests/kernels/kernel_test_support.h"

// The same logits, parameters, seed and position give the same token on CPU and GPU. Sums differ by
// 1e-8 of the whole at most, weights not at all (plain C++: by some 1e-7), so that a draw would
// have to fall that close to a border between two tokens to give another one; none of these does.
namespace baton {
namespace {

// A row in the words of both: what the host makes of history, bias and bans for the kernel.
struct BothWays {
  TokenSelection cpu;
  SamplingCase gpu;
};

class SelectTokensEquality : public KernelTest {
 protected:
  void ExpectEqualTokens(const std::vector<float>& logits, const std::vector<BothWays>& rows) {
    std::vector<TokenSelection> selections;
    std::vector<SamplingCase> cases;
    for (const BothWays& row : rows) {
      selections.push_back(row.cpu);
      cases.push_back(row.gpu);
    }
    std::vector<SelectedToken> expected(rows.size());
    const int count = static_cast<int>(rows.size());
    const int vocabulary = static_cast<int>(logits.size() / rows.size());
    const absl::Status status = backend().SelectTokens(
        {.logits = {logits.data(), count, vocabulary}, .rows = selections, .selected = expected});
    ASSERT_TRUE(status.ok()) << status;

    const std::vector<SampledRow> sampled = Sample(logits, cases);

    for (std::size_t r = 0; r < rows.size(); ++r) {
      ASSERT_EQ(sampled[r].result.error, cuda::SamplingError::kNone);
      ASSERT_EQ(sampled[r].result.token, static_cast<int>(expected[r].token.value()))
          << "row " << r;
      EXPECT_NEAR(sampled[r].result.logprob, expected[r].logprob, 2e-6f) << "row " << r;
      for (std::size_t i = 0; i < expected[r].alternatives.size(); ++i) {
        EXPECT_EQ(sampled[r].alternatives[i],
                  static_cast<int>(expected[r].alternatives[i].token.value()));
        EXPECT_NEAR(sampled[r].logprobs[i], expected[r].alternatives[i].logprob, 2e-6f);
      }
    }
  }
};

BothWays Plain(Numbers& numbers, std::uint64_t position) {
  constexpr float kTemperatures[] = {0.0f, 0.3f, 0.8f, 1.0f, 1.7f};
  constexpr float kTopPs[] = {1.0f, 1.0f, 0.95f, 0.5f, 0.05f};
  constexpr float kMinPs[] = {0.0f, 0.0f, 0.01f, 0.2f};
  constexpr int kTopKs[] = {0, 0, 1, 40, 700};
  BothWays row;
  row.cpu.temperature = kTemperatures[numbers.Below(5)];
  row.cpu.top_p = kTopPs[numbers.Below(5)];
  row.cpu.min_p = kMinPs[numbers.Below(4)];
  row.cpu.top_k = kTopKs[numbers.Below(5)];
  row.cpu.seed = static_cast<std::uint64_t>(numbers.Below(1 << 30)) << 20;
  row.cpu.position = position;
  row.gpu.row = {.temperature = row.cpu.temperature,
                 .top_p = row.cpu.top_p,
                 .min_p = row.cpu.min_p,
                 .top_k = row.cpu.top_k,
                 .seed = row.cpu.seed,
                 .position = row.cpu.position};
  if (numbers.Below(4) == 0) {
    row.cpu.logprobs = numbers.Below(6);
    row.gpu.row.logprobs = *row.cpu.logprobs;
  }
  return row;
}

TEST_P(SelectTokensEquality, OfManyRowsOfEveryKind) {
  Numbers numbers(181);
  SCOPED_TRACE(numbers.Describe());
  for (const std::size_t vocabulary : {1u, 17u, 1000u, 4099u}) {
    for (const float spread : {0.0f, 1e-3f, 1.0f, 4.0f}) {
      SCOPED_TRACE(testing::Message() << "V " << vocabulary << " spread " << spread);
      constexpr std::size_t kRows = 30;
      std::vector<float> logits = numbers.Normals(kRows * vocabulary);
      for (std::size_t i = 0; i < logits.size(); ++i) {
        logits[i] = 5 + spread * (i % 4 == 0 ? std::round(logits[i]) : logits[i]);
      }
      std::vector<BothWays> rows;
      for (std::size_t r = 0; r < kRows; ++r) {
        rows.push_back(Plain(numbers, r));
        if (rows[r].cpu.logprobs.has_value() && vocabulary < 6) {
          rows[r].cpu.logprobs = 1;
          rows[r].gpu.row.logprobs = 1;
        }
      }
      ExpectEqualTokens(logits, rows);
    }
  }
}

TEST_P(SelectTokensEquality, WithPenaltiesBiasAndBans) {
  Numbers numbers(182);
  SCOPED_TRACE(numbers.Describe());
  constexpr std::size_t kRows = 60;
  constexpr std::size_t kVocabulary = 997;
  std::vector<float> logits = numbers.Normals(kRows * kVocabulary);
  for (float& logit : logits) {
    logit *= 3;
  }
  const std::vector<TokenId> history = {TokenId(4),  TokenId(900), TokenId(33),
                                        TokenId(33), TokenId(4),   TokenId(500)};
  const std::vector<LogitBias> bias = {{TokenId(33), 1.37f}, {TokenId(2), 6.1f}};
  const std::vector<TokenId> banned = {TokenId(500), TokenId(11)};
  std::vector<BothWays> rows;
  for (std::size_t r = 0; r < kRows; ++r) {
    BothWays row = Plain(numbers, r);
    row.cpu.repetition_penalty = r % 2 == 0 ? 1.3f : 1.0f;
    row.cpu.frequency_penalty = r % 3 == 0 ? 0.7f : 0.0f;
    row.cpu.presence_penalty = r % 5 == 0 ? -0.9f : 0.1f;
    row.cpu.history = history;
    row.cpu.prompt_tokens = 3;
    row.cpu.logit_bias = bias;
    row.cpu.banned = banned;
    row.gpu.row.repetition_penalty = row.cpu.repetition_penalty;
    row.gpu.row.frequency_penalty = row.cpu.frequency_penalty;
    row.gpu.row.presence_penalty = row.cpu.presence_penalty;
    row.gpu.edits = {{.token = 4, .output_count = 1, .in_history = 1},
                     {.token = 900, .in_history = 1},
                     {.token = 33, .output_count = 1, .bias = 1.37f, .in_history = 1},
                     {.token = 500, .output_count = 1, .in_history = 1, .banned = 1},
                     {.token = 2, .bias = 6.1f},
                     {.token = 11, .banned = 1}};
    rows.push_back(row);
  }
  ExpectEqualTokens(logits, rows);
}

INSTANTIATE_TEST_SUITE_P(Cpu,
                         SelectTokensEquality,
                         ::testing::Values("plain", "avx2", "avx512bf16", "amx"),
                         BackendTestName);

}  // namespace
}  // namespace baton
