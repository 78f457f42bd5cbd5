#include "planner/rates_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "common/file.h"
#include "tests/planner/course_rates.h"

namespace baton {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string Problem(const std::string& text) {
  const auto rates = ParseRates("rates.json", text);
  EXPECT_FALSE(rates.ok()) << text;
  return std::string(rates.status().message());
}

TEST(RatesFile, ReadsBackWhatItWrites) {
  MeasuredRates rates = SmallRates();
  rates.fixed_share_in_prefill = 0.5;
  rates.measured = {{.prompt_tokens = 100, .first_token_seconds = 0.1},
                    {.disaggregated = true,
                     .transport = "tcp",
                     .prompt_tokens = 200,
                     .running_sequences = 4,
                     .depth_tokens = 900,
                     .first_token_seconds = 0.2}};
  const std::string text = FormatRates(rates);

  const auto back = ParseRates("rates.json", text);

  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(FormatRates(*back), text);
  EXPECT_EQ(back->prefill.size(), rates.prefill.size());
  EXPECT_EQ(back->prefill[1].tokens_per_second, rates.prefill[1].tokens_per_second);
  EXPECT_EQ(back->decode[4].step_seconds, rates.decode[4].step_seconds);
  EXPECT_EQ(back->transports[1].name, "slow");
  EXPECT_EQ(back->kv_pool_tokens, 100'000);
  EXPECT_FALSE(back->measured[0].disaggregated);
  EXPECT_TRUE(back->measured[1].disaggregated);
  EXPECT_EQ(back->measured[1].depth_tokens, 900);
}

TEST(RatesFile, NamesFileAndField) {
  const auto spoiled = [](const char* pointer, const nlohmann::json& value) {
    auto json = nlohmann::json::parse(FormatRates(SmallRates()));
    json[nlohmann::json::json_pointer(pointer)] = value;
    return Problem(json.dump());
  };
  EXPECT_THAT(
      spoiled("/prefill/1/tokens_per_second", "fast"),
      AllOf(StartsWith("rates.json: "), HasSubstr("prefill[1].tokens_per_second: not a number")));
  EXPECT_THAT(spoiled("/prefill/1/tokens_per_second", nullptr), HasSubstr("not a number"));
  EXPECT_THAT(spoiled("/prefill/1/tokens_per_second", -3),
              HasSubstr("prefill[1].tokens_per_second"));
  EXPECT_THAT(spoiled("/prefill", 7), HasSubstr("prefill: not an array"));
  EXPECT_THAT(spoiled("/prefill/0", 7), HasSubstr("prefill[0]: not an object"));
  EXPECT_THAT(spoiled("/prefill", nlohmann::json::array()), HasSubstr("prefill: empty"));
  EXPECT_THAT(spoiled("/decode/0/speed", 7), HasSubstr("decode[0].speed: no member"));
  EXPECT_THAT(spoiled("/blok_tokens", 16), HasSubstr("blok_tokens: no member"));
  EXPECT_THAT(spoiled("/version", 2), HasSubstr("version"));
  EXPECT_THAT(spoiled("/source", 2), HasSubstr("source: not a string"));
  EXPECT_THAT(spoiled("/transports/0/name", 2), HasSubstr("transports[0].name: not a string"));
  EXPECT_THAT(Problem(R"({"version": 1})"), HasSubstr("kv_bytes_per_token: missing"));
  EXPECT_THAT(Problem(R"({"version": 1, "kv_bytes_per_token": 1e999})"),
              StartsWith("rates.json: "));
}

// `baton status --json` has the file as one of its members.
TEST(RatesFile, ReadsTheStatusOfARouter) {
  nlohmann::json status = {{"role", "ROLE_ROUTER"},
                           {"version", "1.0"},
                           {"workers", {{{"description", {{"load", {{"total_blocks", 7}}}}}}}},
                           {"rates", nlohmann::json::parse(FormatRates(SmallRates()))}};
  const auto rates = ParseRates("status.json", status.dump());
  ASSERT_TRUE(rates.ok()) << rates.status();
  EXPECT_EQ(FormatRates(*rates), FormatRates(SmallRates()));
  status["rates"]["blok_tokens"] = 16;
  EXPECT_THAT(Problem(status.dump()), HasSubstr("blok_tokens: no member"));
  status.erase("rates");
  EXPECT_THAT(Problem(status.dump()), HasSubstr("rates: missing"));
}

TEST(RatesFile, RefusesWhatIsNoRatesFile) {
  for (const char* text :
       {"", "{", "[]", "7", "nul", "{\"version\": 1,}", "\xff\xfe", "{\"a\": \"\xff\"}"}) {
    EXPECT_THAT(Problem(text), StartsWith("rates.json: ")) << text;
  }
  EXPECT_THAT(Problem(std::string(100'000, '[')), HasSubstr("nested deeper"));
  EXPECT_THAT(Problem("{\"a\":" + std::string(9, '[') + std::string(9, ']') + "}"),
              HasSubstr("nested deeper"));
  EXPECT_THAT(Problem(std::string((16 << 20) + 1, ' ')), HasSubstr("larger than"));
  EXPECT_THAT(Problem(R"({"version": 1, "layers": 2, "layers": 3})"),
              HasSubstr("layers: twice in one object"));
  // Brackets inside a string are text.
  EXPECT_THAT(Problem("{\"" + std::string(50, '[') + "\\\"[[\": 1}"),
              HasSubstr("version: missing"));
}

// The file that READMEs point to, measured on a real fleet: the curves follow it, and requests that
// they have not seen come out near enough to choose a path by.
TEST(RatesFile, ExampleIsReadAndFollowed) {
  const auto file = MappedFile::Open("planner/example_rates.json");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto rates = ParseRates("example_rates.json", file->bytes());
  ASSERT_TRUE(rates.ok()) << rates.status();
  const CostModel model = FitModel(*rates);

  EXPECT_LT(*MedianError(FitErrors(model)), 0.1);
  EXPECT_LT(*MedianError(RequestErrors(model)), 0.2);
}

TEST(RatesFile, SurvivesEveryCut) {
  const std::string text = FormatRates(SmallRates());
  for (std::size_t length = 0; length + 2 < text.size(); ++length) {
    EXPECT_FALSE(ParseRates("rates.json", text.substr(0, length)).ok()) << length;
  }
}

}  // namespace
}  // namespace baton
