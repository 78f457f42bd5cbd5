// The arithmetic from measured rounds to what is reported.
#include "bench/engine_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

// 512 tokens, a floor of one second by flops.
FigureResult PrefillResult() {
  return {.figure = {.name = "prefill_512", .kind = FigureKind::kPrefill, .prompt_tokens = 512},
          .work = {.flops = 100, .bytes = 10}};
}

FigureRound RoundOf(double wall_seconds) {
  return {.ours = {.wall_seconds = wall_seconds, .cpu_seconds = wall_seconds / 2},
          .limits = {.flops_per_second = 100, .bytes_per_second = 100}};
}

PeerTiming PeerOf(double wall_seconds) {
  return {.timing = {.wall_seconds = wall_seconds, .cpu_seconds = wall_seconds}};
}

Json OnlyResult(FigureResult result) {
  EngineReport report{.isa = "plain"};
  report.results.push_back(std::move(result));
  return ToJson(report)["results"][0];
}

TEST(Median, OfAnEvenNumberIsTheMeanOfTheMiddle) {
  EXPECT_EQ(Median({3}), 3);
  EXPECT_EQ(Median({5, 1, 2}), 2);
  EXPECT_EQ(Median({8, 1, 2, 4}), 3);
}

TEST(EngineReport, WithoutAPeerItsFieldsAreNull) {
  FigureResult result = PrefillResult();
  result.rounds = {RoundOf(2), RoundOf(8), RoundOf(4)};
  const Json json = OnlyResult(std::move(result));

  EXPECT_EQ(json["name"], "prefill_512");
  EXPECT_EQ(json["tokens_per_s"], 128);
  EXPECT_EQ(json["fraction_of_limit"], 0.25);
  EXPECT_EQ(json["fraction_of_limit_cpu"], 0.5);
  EXPECT_EQ(json["limit_name"], "flops");
  for (const char* name : {"peer_tokens_per_s", "ratio_to_peer", "ratio_to_peer_range",
                           "peer_wall_seconds", "peer_cpu_seconds", "ratio_to_peer_cpu"}) {
    EXPECT_TRUE(json.at(name).is_null()) << name;
  }
  EXPECT_FALSE(json.contains("ratio_to_peer_q4_1"));
}

TEST(EngineReport, RatiosAreThoseOfTheMedians) {
  FigureResult result = PrefillResult();
  for (const auto& [ours, peer] : {std::pair{2.0, 4.0}, {4.0, 4.0}, {8.0, 12.0}}) {
    result.rounds.push_back(RoundOf(ours));
    result.rounds.back().peer = PeerOf(peer);
    result.rounds.back().peer_as_given = PeerOf(2 * peer);
  }
  result.rounds[1].peer_as_given->repacked = false;
  const Json json = OnlyResult(std::move(result));

  EXPECT_EQ(json["peer_tokens_per_s"], 128);
  EXPECT_EQ(json["ratio_to_peer"], 1);
  EXPECT_EQ(json["ratio_to_peer_range"], Json::array({1.0, 2.0}));
  EXPECT_EQ(json["ratio_to_peer_cpu"], 2);
  EXPECT_EQ(json["peer_q4_1_tokens_per_s"], 64);
  EXPECT_EQ(json["ratio_to_peer_q4_1"], 2);
  EXPECT_EQ(json["peer_q4_1_repacked"], false);
}

// A path that multiplies tiles may pass the limit of vectors; its own stands beside it.
TEST(EngineReport, TilesHaveALimitOfTheirOwn) {
  FigureResult result = PrefillResult();
  result.rounds = {RoundOf(0.5)};
  EXPECT_TRUE(OnlyResult(result)["fraction_of_tile_limit"].is_null());
  EXPECT_TRUE(OnlyResult(result)["peak_tiles_gflops"].is_null());
  result.rounds[0].tile_flops_per_second = 500;  // a floor of 0.2 s
  const Json json = OnlyResult(std::move(result));

  EXPECT_EQ(json["fraction_of_limit"], 2);
  EXPECT_DOUBLE_EQ(json["fraction_of_tile_limit"].get<double>(), 0.4);
}

TEST(EngineReport, TwoThreadsHaveTwiceTheProcessorTime) {
  FigureResult result = PrefillResult();
  result.figure.threads = 2;
  result.rounds = {RoundOf(4)};  // 2 s of processor time, the floor is 1 s on both
  const Json json = OnlyResult(std::move(result));

  EXPECT_EQ(json["fraction_of_limit"], 0.25);
  EXPECT_EQ(json["fraction_of_limit_cpu"], 1);
}

TEST(EngineReport, TheWorkerIsNullWhenItWasNotMeasured) {
  EngineReport report;
  EXPECT_TRUE(ToJson(report)["worker"].is_null());

  report.worker = {{.start_seconds = 1, .resident_bytes = 100},
                   {.start_seconds = 3, .resident_bytes = 300}};
  EXPECT_EQ(ToJson(report)["worker"]["start_seconds"], 2);
  EXPECT_EQ(ToJson(report)["worker"]["resident_bytes"], 200);
}

}  // namespace
}  // namespace baton
