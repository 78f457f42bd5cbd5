// A whole run of engine-bench on the tiny model: every figure that is promised is there.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/bench/engine_bench_program.h"

namespace baton {
namespace {

using Json = nlohmann::json;

void ExpectPositive(const Json& object, const char* name) {
  ASSERT_TRUE(object.contains(name)) << name;
  ASSERT_TRUE(object[name].is_number()) << name << ": " << object[name];
  EXPECT_TRUE(std::isfinite(object[name].get<double>())) << name;
  EXPECT_GT(object[name].get<double>(), 0) << name;
}

TEST(EngineBenchRun, OneObjectWithEveryFigure) {
  const ChildResult result = RunEngineBench({"--json", "--rounds", "1"});
  ASSERT_EQ(result.code, 0) << result.errors;
  const Json json = Json::parse(result.output, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << result.output;

  std::vector<std::string> names;
  for (const Json& figure : json["results"]) {
    SCOPED_TRACE(figure["name"]);
    names.push_back(figure["name"]);
    for (const char* name : {"tokens_per_s", "fraction_of_limit", "wall_seconds", "cpu_seconds",
                             "peak_gflops", "read_gb_per_s"}) {
      ExpectPositive(figure, name);
    }
    EXPECT_TRUE(figure.at("peer_tokens_per_s").is_null());
    EXPECT_TRUE(figure.at("ratio_to_peer").is_null());
    EXPECT_EQ(figure["rounds"], 1);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"prefill_512", "prefill_2048", "decode_0",
                                             "decode_2048", "batch_8", "batch_16", "prefill_512_2t",
                                             "prefill_2048_2t", "decode_0_2t", "decode_2048_2t",
                                             "batch_8_2t", "batch_16_2t"}));
  ExpectPositive(json["worker"], "start_seconds");
  ExpectPositive(json["worker"], "resident_bytes");
  ExpectPositive(json, "seconds");
}

}  // namespace
}  // namespace baton
