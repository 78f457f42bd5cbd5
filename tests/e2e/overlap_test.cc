// How much of a handoff a request has to wait for: pieces leave while the prompt is still being
// computed, so after the first token next to nothing is left. Real model, and what the thread that
// moves blocks costs the cores that compute.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "proto/status_conversion.h"
#include "tests/support/cluster.h"
#include "tests/support/prompts.h"
#include "tests/support/scrape.h"
#include "tests/support/test_models.h"

namespace baton {
namespace {

constexpr int kPrompts = 5;
constexpr std::uint32_t kPromptTokens = 2048;

double Seconds(const google::protobuf::Duration& duration) {
  return std::chrono::duration<double>(FromProtoDuration(duration)).count();
}

double ThreadSeconds(const ServerProcess& worker) {
  const auto samples = Scrape(worker.Door("metrics"));
  EXPECT_TRUE(samples.ok()) << samples.status();
  if (samples.ok()) {
    for (const auto& [name, value] : *samples) {
      if (name.starts_with("baton_kv_transfer_thread_seconds_total{")) {
        return value;
      }
    }
  }
  ADD_FAILURE() << "no processor time of the transfer thread";
  return 0;
}

// The share of the prefill time that a prompt's last blocks keep its second token waiting: the
// median of a few prompts.
void ExpectHidden(const std::string& transport, double most) {
  SCOPED_TRACE(transport);
  auto cluster = Cluster::Start({.model = *ExampleModel(),
                                 .kv_pool_size = "512MiB",
                                 .worker_flags = {"--prefix-cache", "off", "--kv-transport",
                                                  transport, "--metrics-listen", "127.0.0.1:0"}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  std::vector<double> shares;
  double prefill_seconds = 0;
  for (std::uint32_t prompt = 0; prompt < kPrompts; ++prompt) {
    Tokens tokens;
    for (std::uint32_t i = 0; i < kPromptTokens; ++i) {
      tokens.push_back(1000 + (i * 131 + prompt * 977) % 20000);
    }
    const auto response = (*cluster)->client().Complete(
        GreedyRequest(tokens, 4, v1::PATH_DISAGGREGATED), std::chrono::minutes(5));
    ASSERT_TRUE(response.ok()) << response.status();
    const v1::Timeline& timeline = response->timeline();
    EXPECT_EQ(timeline.transport(), transport);
    shares.push_back(Seconds(timeline.exposed_transfer()) / Seconds(timeline.prefill()));
    prefill_seconds += Seconds(timeline.prefill());
    std::printf("%s: prefill %.1f ms, transfer %.1f ms, exposed %.2f ms = %.2f %%\n",
                transport.c_str(), 1e3 * Seconds(timeline.prefill()),
                1e3 * Seconds(timeline.transfer()), 1e3 * Seconds(timeline.exposed_transfer()),
                100 * shares.back());
  }
  std::printf(
      "%s: the transfer threads took %.2f %% (prefill side) and %.2f %% (decode side) of "
      "the prefill time\n",
      transport.c_str(), 100 * ThreadSeconds((*cluster)->prefill()) / prefill_seconds,
      100 * ThreadSeconds((*cluster)->decode()) / prefill_seconds);
  std::sort(shares.begin(), shares.end());
  EXPECT_LE(shares[kPrompts / 2], most) << "median of " << kPrompts;
}

TEST(Overlap, HidesTheTransferBehindPrefill) {
  ExpectHidden("tcp", 0.05);
  ExpectHidden("mapped", 0.02);
}

}  // namespace
}  // namespace baton
