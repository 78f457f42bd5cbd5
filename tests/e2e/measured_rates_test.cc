// What whole workers say of their own speed, beside what a client has seen.
#include <gtest/gtest.h>

#include "tests/support/cluster.h"
#include "tests/support/wait_until.h"

namespace baton {
namespace {

class MeasuredRatesTest : public testing::TestWithParam<const char*> {};

TEST_P(MeasuredRatesTest, WorkersTellWhatTheyWereSeenToDo) {
  const std::string transport = GetParam();
  auto started = Cluster::Start({.worker_flags = {"--kv-transport", transport}});
  ASSERT_TRUE(started.ok()) << started.status();
  Cluster& cluster = **started;
  // Different prompts, so that nothing is cached.
  Duration slowest{};
  for (std::uint32_t number = 0; number < 8; ++number) {
    const TimePoint begin = Clock::System().Now();
    const auto response = cluster.client().Complete(GreedyRequest(
        TinyPrompt(number, number % 2 == 0 ? 600 : 2400), 20, v1::PATH_DISAGGREGATED));
    ASSERT_TRUE(response.ok()) << response.status();
    slowest = std::max(slowest, Clock::System().Now() - begin);
  }

  const auto prefill = cluster.prefill().Describe();
  const auto decode = cluster.decode().Describe();
  ASSERT_TRUE(prefill.ok() && decode.ok());
  SCOPED_TRACE(prefill->rates().ShortDebugString() + decode->rates().ShortDebugString());
  ASSERT_EQ(prefill->rates().prefill_size(), 2);
  EXPECT_EQ(prefill->rates().prefill(0).prompt_tokens(), 600);
  EXPECT_EQ(prefill->rates().prefill(1).prompt_tokens(), 2400);
  // No quicker than the whole request was.
  for (const v1::WorkerRates::PrefillRate& rate : prefill->rates().prefill()) {
    EXPECT_GT(rate.tokens_per_second() * std::chrono::duration<double>(slowest).count(),
              rate.prompt_tokens());
  }
  EXPECT_EQ(prefill->rates().transports_size(), 0);
  EXPECT_EQ(decode->rates().prefill_size(), 0);
  ASSERT_GE(decode->rates().decode_size(), 1);
  EXPECT_EQ(decode->rates().decode(0).batch(), 1);
  EXPECT_GE(decode->rates().decode(0).depth_tokens(), 600);
  EXPECT_LT(decode->rates().decode(0).step_seconds(),
            std::chrono::duration<double>(slowest).count());
  ASSERT_EQ(decode->rates().transports_size(), 1);
  EXPECT_EQ(decode->rates().transports(0).name(), transport);
  EXPECT_GT(decode->rates().transports(0).bytes_per_second(), 0);
  std::printf("%s: %s\n", transport.c_str(),
              decode->rates().transports(0).ShortDebugString().c_str());
}

INSTANTIATE_TEST_SUITE_P(Transports, MeasuredRatesTest, testing::Values("tcp", "mapped"));

}  // namespace
}  // namespace baton
