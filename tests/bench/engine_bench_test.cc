// The program engine-bench: exit codes, what goes where, and the comparison, with a stand-in for
// the peer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/bench/engine_bench_program.h"
#include "tests/support/tiny_checkpoint.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

// Programs with the peer's names that answer at once.
class StandInPeer {
 public:
  StandInPeer() {
    // Crashes with its own packing of the file as given, as llama.cpp has been seen to.
    Write("llama-bench",
          "case \"$*\" in *bf16.gguf*|*'--repack 0'*) ;; *) kill -SEGV $$ ;; esac\n"
          "echo '{\"samples_ns\": [2000000000]}'\n");
    Write("llama-batched-bench", "echo '{\"t_tg\": 4.0}'\n");
    Write("llama-quantize", "cp \"$2\" \"$3\"\n");
  }

  std::string path() const { return folder_.path().string(); }

 private:
  void Write(const std::string& name, const std::string& script) {
    const std::filesystem::path path = folder_.path() / name;
    std::ofstream(path) << "#!/bin/sh\n" << script;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }

  TemporaryFolder folder_;
};

TEST(EngineBench, TheStandardSwitchesWork) {
  for (const char* flag : {"--help", "--version", "--print-config", "--check-config"}) {
    EXPECT_EQ(RunEngineBench({flag}).code, 0) << flag;
  }
}

TEST(EngineBench, WrongUsageIsExitCode2) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--only", "prefill_7"},
                                             {"--only", "decode_0_2t", "--threads", "1"},
                                             {"--threads", "0"},
                                             {"--rounds", "0"},
                                             {"--device", "tpu"},
                                             {"--cpu-isa", "mmx"}}) {
    const ChildResult result = RunEngineBench(arguments);
    EXPECT_EQ(result.code, 2) << arguments.front();
    EXPECT_EQ(result.output, "");
    EXPECT_NE(result.errors, "");
  }
}

TEST(EngineBench, AFailureIsExitCode1AndSaysWhy) {
  const ChildResult no_peer = RunEngineBench({"--peer", "/nonexistent", "--only", "prefill_512"});
  EXPECT_EQ(no_peer.code, 1);
  EXPECT_THAT(no_peer.errors, HasSubstr("/nonexistent has no llama-bench"));

  const TinyCheckpoint short_context({.context_tokens = 1024});
  const ChildResult too_long =
      RunEngineBench({"--model", short_context.file(), "--only", "prefill_2048"});
  EXPECT_EQ(too_long.code, 1);
  EXPECT_THAT(too_long.errors, HasSubstr("prefill_2048 needs a context of 2049"));
}

TEST(EngineBench, ComparesWithThePeer) {
  const StandInPeer peer;
  const ChildResult result =
      RunEngineBench({"--json", "--peer", peer.path(), "--only", "prefill_512", "--only",
                      "batch_8_2t", "--rounds", "1"});

  ASSERT_EQ(result.code, 0) << result.errors;
  const Json json = Json::parse(result.output, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << result.output;
  ASSERT_EQ(json["results"].size(), 2);
  const Json prefill = json["results"][0];
  EXPECT_EQ(prefill["peer_tokens_per_s"], 256);
  EXPECT_NEAR(prefill["ratio_to_peer"].get<double>(), prefill["tokens_per_s"].get<double>() / 256,
              1e-6);
  EXPECT_EQ(prefill["peer_q4_1_tokens_per_s"], 256);
  EXPECT_EQ(prefill["peer_q4_1_repacked"], false);
  const Json batch = json["results"][1];
  EXPECT_EQ(batch["name"], "batch_8_2t");
  EXPECT_EQ(batch["threads"], 2);
  EXPECT_EQ(batch["peer_tokens_per_s"], 64);
  EXPECT_GE(batch["peer_cpu_seconds"].get<double>(), 0);
  EXPECT_EQ(json["worker"], nullptr);
}

TEST(EngineBench, WithoutJsonItPrintsATable) {
  const ChildResult result = RunEngineBench({"--only", "decode_0", "--rounds", "1"});

  ASSERT_EQ(result.code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("decode_0 "));
  EXPECT_THAT(result.output, HasSubstr("of limit"));
}

}  // namespace
}  // namespace baton
