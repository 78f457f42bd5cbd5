// What the peer is asked and how its answers are read, without the peer.
#include "bench/llama_cpp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Figure FigureNamed(const std::string& name) {
  for (const Figure& figure : MakeFigures(std::array{1, 2})) {
    if (figure.name == name) {
      return figure;
    }
  }
  ADD_FAILURE() << name;
  return {};
}

TEST(PeerCommand, PrefillWarmsUpAndRunsTwice) {
  EXPECT_THAT(PeerCommand("peer", "model.gguf", FigureNamed("prefill_512_2t")),
              ElementsAre("peer/llama-bench", "-m", "model.gguf", "-t", "2", "-fa", "1", "-o",
                          "jsonl", "-p", "512", "-n", "0", "-r", "2"));
}

TEST(PeerCommand, ALongContextRunsOnce) {
  EXPECT_THAT(PeerCommand("peer", "model.gguf", FigureNamed("decode_2048")),
              ElementsAre("peer/llama-bench", "-m", "model.gguf", "-t", "1", "-fa", "1", "-o",
                          "jsonl", "-p", "0", "-n", "64", "-d", "2048", "-r", "1", "--no-warmup"));
}

TEST(PeerCommand, StreamsAreMeasuredByTheBatchedProgram) {
  EXPECT_THAT(PeerCommand("peer", "model.gguf", FigureNamed("batch_16")),
              ElementsAre("peer/llama-batched-bench", "-m", "model.gguf", "-c", "8192", "-npp",
                          "128", "-ntg", "32", "-npl", "16", "-t", "1", "-tb", "1", "-fa", "on",
                          "--output-format", "jsonl"));
}

TEST(ParsePeerSeconds, TheMeanOfTheSamples) {
  const auto seconds = ParsePeerSeconds(
      FigureNamed("prefill_512"),
      "loading\n{\"n_prompt\": 512, \"samples_ns\": [ 1000000000, 2000000000 ]}\n");

  ASSERT_TRUE(seconds.ok()) << seconds.status();
  EXPECT_DOUBLE_EQ(*seconds, 1.5);
}

TEST(ParsePeerSeconds, OfABatchOnlyTheTimeOfDecoding) {
  const auto seconds = ParsePeerSeconds(
      FigureNamed("batch_8"), "{\"pp\": 128, \"t_pp\": 3.5, \"t_tg\": 2.25, \"t\": 5.75}\n\n");

  ASSERT_TRUE(seconds.ok()) << seconds.status();
  EXPECT_DOUBLE_EQ(*seconds, 2.25);
}

TEST(ParsePeerSeconds, AnythingElseIsAnError) {
  for (const char* output : {"", "not json", "{}", "[1]", "{\"samples_ns\": []}",
                             "{\"samples_ns\": \"1\"}", "{\"t_tg\": \"fast\"}"}) {
    for (const char* name : {"decode_0", "batch_8"}) {
      const auto seconds = ParsePeerSeconds(FigureNamed(name), output);
      EXPECT_FALSE(seconds.ok()) << name << ": " << output;
      EXPECT_THAT(std::string(seconds.status().message()), HasSubstr(name));
    }
  }
}

}  // namespace
}  // namespace baton
