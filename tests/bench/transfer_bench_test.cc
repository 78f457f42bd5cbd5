// Runs transfer-bench on a few blocks: what it prints and that the bytes arrive; never how fast.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "bench/measured_child.h"
#include "bench/transfer_pool.h"
#include "bench/transfer_report.h"

namespace baton {
namespace {

using Json = nlohmann::json;

ChildResult RunTransferBench(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {TRANSFER_BENCH};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return *RunProgram(command, std::chrono::minutes(1));
}

void ExpectPositive(const Json& row, const char* name) {
  ASSERT_TRUE(row.contains(name) && row[name].is_number()) << name << " in " << row;
  EXPECT_GT(row[name].get<double>(), 0) << name;
}

TEST(TransferBench, OneObjectWithEveryRowVerified) {
  const ChildResult result = RunTransferBench({"--quick", "--json"});
  ASSERT_EQ(result.code, 0) << result.errors;
  const Json json = Json::parse(result.output, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << result.output;

  std::set<std::string> rows;
  for (const Json& row : json.at("results")) {
    SCOPED_TRACE(row.dump());
    rows.insert(row.at("transport").get<std::string>() + " " + row.at("piece").get<std::string>());
    for (const char* name : {"gb_per_s", "limit_gb_per_s", "ratio_to_limit", "posting_fraction",
                             "first_gb_per_s", "sender_cpu_s_per_gb", "receiver_cpu_s_per_gb"}) {
      ExpectPositive(row, name);
    }
    EXPECT_LT(row["posting_fraction"], 1);
    EXPECT_EQ(row["verified"], true);
    EXPECT_EQ(row["rounds"], 2);
  }
  EXPECT_TRUE(rows.contains("tcp block"));
  EXPECT_TRUE(rows.contains("tcp layer"));
  for (const Json& row : json.at("limits")) {
    SCOPED_TRACE(row.dump());
    ExpectPositive(row, "gb_per_s");
    EXPECT_EQ(row.at("verified"), true);
  }
  EXPECT_EQ(json.at("limits").size(), 8);
  EXPECT_FALSE(json.at("network").get<std::string>().empty());
  EXPECT_FALSE(json.at("congestion_control").get<std::string>().empty());
}

TEST(TransferBench, WorksInTheHostsNetwork) {
  const ChildResult result = RunTransferBench({"--tokens", "64", "--rounds", "1", "--only", "tcp",
                                               "--network", "host", "--piece", "block"});
  ASSERT_EQ(result.code, 0) << result.errors;
  EXPECT_NE(result.output.find("network: the host's, as asked"), std::string::npos)
      << result.output;
}

TEST(TransferBench, APeerThatSaysItFailedFailsTheRun) {
  // A peer in two lines of shell: it names its transport and claims a transfer that went wrong.
  const std::string peer =
      R"(/bin/sh -c 'echo "{\"transports\": [\"broken\"]}"; while read -r line; do echo "{\"seconds\": 1, \"verified\": false}"; done' peer)";
  const ChildResult result = RunTransferBench(
      {"--tokens", "16", "--rounds", "1", "--only", "memcpy", "--json", "--peer", peer});
  EXPECT_EQ(result.code, 1) << result.errors;
  const Json json = Json::parse(result.output, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << result.output << result.errors;
  ASSERT_EQ(json.at("results").size(), 2);
  EXPECT_EQ(json["results"][0]["transport"], "broken");
  EXPECT_EQ(json["results"][0]["verified"], false);
}

TEST(TransferBench, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(RunTransferBench({"--only", "pigeon"}).code, 2);
  EXPECT_EQ(RunTransferBench({"--tokens", "17"}).code, 2);
}

TEST(TransferPool, HoldsNoticesOneChangedByte) {
  const TransferShape shape{.blocks = 3, .layers = 2, .layer_bytes = 64};
  const auto pool = TransferPool::Create(shape, PoolMemory::kHugePages);
  ASSERT_TRUE(pool.ok()) << pool.status();
  const std::vector<BlockId> blocks = (*pool)->Scatter(1, TransferPool::Side::kSource);
  (*pool)->Fill(blocks, 1);
  ASSERT_TRUE((*pool)->Holds(blocks, 1));

  for (const std::span<std::byte> piece : (*pool)->Pieces(blocks, Piece::kLayer)) {
    for (std::byte* byte : {&piece.front(), &piece.back()}) {
      *byte ^= std::byte{1};
      EXPECT_FALSE((*pool)->Holds(blocks, 1));
      *byte ^= std::byte{1};
    }
  }
  EXPECT_TRUE((*pool)->Holds(blocks, 1));
  EXPECT_FALSE((*pool)->Holds(blocks, 2)) << "two rounds have the same bytes";
}

TEST(TransferReport, RatiosAreTakenRoundByRound) {
  const auto row = [](std::string name, std::string limit, std::vector<double> seconds) {
    RowSamples samples{.transport = std::move(name),
                       .limit = std::move(limit),
                       .first = TransferSample{.seconds = 9, .verified = true}};
    for (const double each : seconds) {
      samples.rounds.push_back({.seconds = each, .posting_seconds = each / 4, .verified = true});
    }
    return samples;
  };
  TransferReport report;
  report.rows = {row("raw", "", {1, 2, 4}), row("ours", "raw", {2, 2, 10})};

  const Json json = Json::parse(ToJson(report));
  ASSERT_EQ(json["results"].size(), 1);
  EXPECT_DOUBLE_EQ(json["results"][0]["ratio_to_limit"], 0.5);  // of 0.5, 1 and 0.4
  EXPECT_DOUBLE_EQ(json["results"][0]["posting_fraction"], 0.25);
  EXPECT_EQ(json["results"][0]["verified"], true);
  EXPECT_TRUE(IsComplete(report));

  report.rows[1].rounds[1].verified = false;
  EXPECT_EQ(Json::parse(ToJson(report))["results"][0]["verified"], false);
  EXPECT_FALSE(IsComplete(report));
}

}  // namespace
}  // namespace baton
