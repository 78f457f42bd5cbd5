#include "bench/trace_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr PromptVocabulary kVocabulary{.first_token = 100, .tokens = 1000};

double ShareBelow(const Trace& trace, int tokens) {
  const auto shorter =
      std::count_if(trace.requests.begin(), trace.requests.end(),
                    [tokens](const TraceRequest& r) { return r.prompt_tokens < tokens; });
  return static_cast<double>(shorter) / static_cast<double>(trace.requests.size());
}

// Of all whole blocks of all prompts, those whose tokens up to their end have been seen before.
double ShareOfBlocksSeen(const Trace& trace) {
  std::set<std::pair<std::size_t, std::vector<std::uint32_t>>> seen;  // chain so far, tokens
  std::size_t blocks = 0;
  std::size_t hits = 0;
  for (const TraceRequest& request : trace.requests) {
    const std::vector<std::uint32_t> tokens =
        MakePromptTokens(request, trace.hashed_tokens, kVocabulary, true, 0);
    std::size_t chain = 0;
    for (std::size_t at = 0; at < tokens.size(); at += 16) {
      const std::vector<std::uint32_t> block(&tokens[at], &tokens[at] + 16);
      const auto [place, is_new] = seen.emplace(chain, block);
      chain = reinterpret_cast<std::size_t>(&*place);
      ++blocks;
      hits += is_new ? 0 : 1;
    }
  }
  return static_cast<double>(hits) / static_cast<double>(blocks);
}

void ExpectProblem(const absl::StatusOr<Trace>& trace, const std::string& text) {
  ASSERT_FALSE(trace.ok());
  EXPECT_EQ(trace.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(trace.status().message()), HasSubstr(text));
}

absl::StatusOr<Trace> Mooncake(const std::string& text) {
  return ParseMooncakeTrace("m.jsonl", text, 32);
}

absl::StatusOr<Trace> Azure(const std::string& rows) {
  return ParseAzureTrace("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\r\n" + rows, 1);
}

TEST(MooncakeTrace, DividesLengthsAndRoundsUp) {
  const absl::StatusOr<Trace> trace = Mooncake(
      "{\"timestamp\": 3000, \"input_length\": 513, \"output_length\": 1, \"hash_ids\": [7, 9]}\n"
      "{\"timestamp\": 4500, \"input_length\": 512, \"output_length\": 64, \"hash_ids\": [7]}\n");

  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->hashed_tokens, 16);
  ASSERT_EQ(trace->requests.size(), 2);
  EXPECT_EQ(trace->requests[0].arrival, Duration::zero());
  EXPECT_EQ(trace->requests[0].prompt_tokens, 17);
  EXPECT_EQ(trace->requests[0].output_tokens, 1);
  EXPECT_THAT(trace->requests[0].hash_ids, ElementsAre(7, 9));
  EXPECT_EQ(trace->requests[1].arrival, std::chrono::milliseconds(1500));
  EXPECT_EQ(trace->requests[1].prompt_tokens, 16);
  EXPECT_EQ(trace->requests[1].output_tokens, 2);
}

TEST(MooncakeTrace, ProblemsNameFileAndLine) {
  const std::string good =
      "{\"timestamp\": 9, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [1]}\n";

  ExpectProblem(Mooncake(""), "m.jsonl: no requests");
  ExpectProblem(Mooncake(good + "{"), "m.jsonl:2: not a JSON object");
  ExpectProblem(Mooncake(good + "\n[1]"), "m.jsonl:3: not a JSON object");
  ExpectProblem(Mooncake("{\"timestamp\": 1.5}"), "m.jsonl:1: timestamp: no integer");
  ExpectProblem(Mooncake("{\"timestamp\": -1, \"input_length\": 5}"), "timestamp: -1 is not in");
  ExpectProblem(Mooncake(good + "{\"timestamp\": 9, \"input_length\": 0, \"output_length\": 1, "
                                "\"hash_ids\": []}"),
                "m.jsonl:2: input_length: 0 is not in");
  ExpectProblem(Mooncake("{\"timestamp\": 9, \"input_length\": 18446744073709551615, "
                         "\"output_length\": 1, \"hash_ids\": []}"),
                "input_length: no integer");
  ExpectProblem(Mooncake("{\"timestamp\": 9, \"input_length\": 513, \"output_length\": 1, "
                         "\"hash_ids\": [1]}"),
                "hash_ids: 1 of them, not 2 for 513 tokens");
  ExpectProblem(Mooncake("{\"timestamp\": 9, \"input_length\": 5, \"output_length\": 1, "
                         "\"hash_ids\": [-1]}"),
                "hash_ids: holds what is no integer");
  ExpectProblem(Mooncake(good + "{\"timestamp\": 8, \"input_length\": 5, \"output_length\": 1, "
                                "\"hash_ids\": [1]}"),
                "m.jsonl:2: earlier than the line before");
}

TEST(AzureTrace, ReadsTimesAcrossMidnight) {
  const absl::StatusOr<Trace> trace = Azure(
      "2023-11-16 23:59:59.9000000,374,44\r\n"
      "2023-11-17 00:00:00.1500001,1,109\r\n"
      "2023-11-17 00:00:01+00:00,20,3");

  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->hashed_tokens, 0);
  ASSERT_EQ(trace->requests.size(), 3);
  EXPECT_EQ(trace->requests[1].arrival, std::chrono::nanoseconds(250'000'100));
  EXPECT_EQ(trace->requests[2].arrival, std::chrono::milliseconds(1100));
  EXPECT_EQ(trace->requests[1].prompt_tokens, 1);
  EXPECT_EQ(trace->requests[1].output_tokens, 109);
  EXPECT_THAT(trace->requests[1].hash_ids, IsEmpty());
}

TEST(AzureTrace, ProblemsNameFileAndLine) {
  ExpectProblem(ParseAzureTrace("a.csv", "time,a,b\n", 1), "a.csv:1: not TIMESTAMP,");
  ExpectProblem(Azure(""), "a.csv: no requests");
  ExpectProblem(Azure("2023-11-16 18:15:46.6805900,374\r\n"), "a.csv:2: not three columns");
  ExpectProblem(Azure("2023-11-16 18:15:46.6805900,374,1,1"), "a.csv:2: not three columns");
  ExpectProblem(Azure("2023-11-16 18:15:46.6805900,-1,1"), "ContextTokens: -1 is not in");
  ExpectProblem(Azure("2023-11-16 18:15:46.6805900,1,x"), "GeneratedTokens: no integer");
  for (const char* time :
       {"2023-11-16", "2023-02-30 18:15:46.1", "2023-11-16 24:15:46.1", "2023-11-16 18:60:46.1",
        "2023-11-16 18:15:46.", "2023-11-16 18:15:46,5", "2023-11-16 18:15:46.1234567891",
        "2023-11-16T18:15:46.1", "2023-11-16 18:15:46.-1"}) {
    ExpectProblem(Azure(std::string(time) + ",1,1"), "a.csv:2: ");
  }
}

TEST(TraceFile, MissingFileIsNamed) {
  const absl::StatusOr<Trace> trace = ReadTraceFile("bench/traces/none.csv", 1);

  EXPECT_EQ(trace.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(trace.status().message()), HasSubstr("bench/traces/none.csv"));
}

TEST(PromptTokens, EqualHashIdsGiveEqualTokensAnywhere) {
  const TraceRequest first{.prompt_tokens = 40, .hash_ids = {5, 6, 7}};
  const TraceRequest second{.prompt_tokens = 20, .hash_ids = {5, 6}};

  const auto padded = MakePromptTokens(first, 16, kVocabulary, true, 1);
  const auto exact = MakePromptTokens(first, 16, kVocabulary, false, 2);
  const auto shorter = MakePromptTokens(second, 16, kVocabulary, false, 3);

  EXPECT_EQ(padded.size(), 48);
  ASSERT_EQ(exact.size(), 40);
  ASSERT_EQ(shorter.size(), 20);
  EXPECT_TRUE(std::equal(exact.begin(), exact.end(), padded.begin()));
  EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), padded.begin()));
  EXPECT_FALSE(std::equal(padded.begin(), padded.begin() + 16, padded.begin() + 16));
  for (const std::uint32_t token : padded) {
    EXPECT_GE(token, 100);
    EXPECT_LT(token, 1100);
  }
}

TEST(PromptTokens, WithoutHashIdsTheSeedDecides) {
  const TraceRequest request{.prompt_tokens = 30};

  EXPECT_EQ(MakePromptTokens(request, 0, kVocabulary, true, 1).size(), 30);
  EXPECT_EQ(MakePromptTokens(request, 0, kVocabulary, true, 1),
            MakePromptTokens(request, 0, kVocabulary, true, 1));
  EXPECT_NE(MakePromptTokens(request, 0, kVocabulary, true, 1),
            MakePromptTokens(request, 0, kVocabulary, true, 2));
}

struct PublicTrace {
  const char* file;
  int divisor;
  std::size_t requests;
  double share_below_512;
  double share_of_blocks_seen;  // 0: without prefix information
};

class PublicTraceFile : public ::testing::TestWithParam<PublicTrace> {};

TEST_P(PublicTraceFile, IsAsItsReadmeSays) {
  const absl::StatusOr<Trace> trace =
      ReadTraceFile(std::string("bench/traces/") + GetParam().file, GetParam().divisor);

  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->requests.size(), GetParam().requests);
  EXPECT_NEAR(ShareBelow(*trace, 512), GetParam().share_below_512, 0.0005);
  if (GetParam().share_of_blocks_seen > 0) {
    EXPECT_NEAR(ShareOfBlocksSeen(*trace), GetParam().share_of_blocks_seen, 0.00005);
    for (const TraceRequest& request : trace->requests) {
      EXPECT_LE(request.prompt_tokens + request.output_tokens, 8192);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         PublicTraceFile,
                         ::testing::Values(PublicTrace{.file = "mooncake_conversation.jsonl",
                                                       .divisor = 32,
                                                       .requests = 12031,
                                                       .share_below_512 = 0.7726,
                                                       .share_of_blocks_seen = 0.3664},
                                           PublicTrace{.file = "mooncake_synthetic.jsonl",
                                                       .divisor = 32,
                                                       .requests = 3993,
                                                       .share_below_512 = 0.6021,
                                                       .share_of_blocks_seen = 0.6396},
                                           PublicTrace{.file = "azure_2023_conv.csv",
                                                       .divisor = 1,
                                                       .requests = 19366,
                                                       .share_below_512 = 0.3946,
                                                       .share_of_blocks_seen = 0},
                                           PublicTrace{.file = "azure_2023_code.csv",
                                                       .divisor = 1,
                                                       .requests = 8819,
                                                       .share_below_512 = 0.2327,
                                                       .share_of_blocks_seen = 0}),
                         [](const auto& trace) {
                           const std::string file = trace.param.file;
                           return file.substr(0, file.find('.'));
                         });

}  // namespace
}  // namespace baton
