#include "bench/compare_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace baton {
namespace {

const PlanOptions kOptions{.traces = "bench/traces"};
constexpr int kContextTokens = 8192;  // of the example model

void ExpectUsable(const ComparePlan& plan) {
  std::set<std::string> names;
  for (const ComparedWorkload& traffic : plan.workloads) {
    SCOPED_TRACE(traffic.name);
    EXPECT_TRUE(names.insert(traffic.name).second);
    EXPECT_TRUE(std::is_sorted(traffic.rates.begin(), traffic.rates.end()));
    EXPECT_EQ(std::count(traffic.rates.begin(), traffic.rates.end(), traffic.reference_rate), 1);
    for (const double rate : traffic.rates) {
      for (const std::uint64_t seed : {1, 2, 5}) {
        const Workload workload = traffic.make(rate, traffic.duration, seed);
        const double seconds = std::chrono::duration<double>(traffic.duration).count();
        EXPECT_NEAR(static_cast<double>(workload.requests.size()), rate * seconds, 1.5);
        for (const LoadRequest& request : workload.requests) {
          EXPECT_LE(request.shape.prompt_tokens + request.shape.output_tokens, kContextTokens);
          EXPECT_LE(request.shape.arrival, traffic.duration * 1.1);
        }
      }
    }
  }
  EXPECT_TRUE(std::is_sorted(plan.crossover_prompts.begin(), plan.crossover_prompts.end()));
  EXPECT_TRUE(std::is_sorted(plan.crossover_outputs.begin(), plan.crossover_outputs.end()));
}

TEST(ComparePlan, QuickOneFitsIntoSixMinutes) {
  const auto plan = QuickPlan(kOptions);

  ASSERT_TRUE(plan.ok()) << plan.status();
  ExpectUsable(*plan);
  double seconds = 0;
  for (const ComparedWorkload& traffic : plan->workloads) {
    const double runs =
        3.0 * (traffic.reference_repeats +
               static_cast<double>(traffic.rates.size() - 1) * traffic.other_repeats);
    seconds += runs * (std::chrono::duration<double>(traffic.duration).count() + 3);
  }
  EXPECT_LT(seconds, 240);  // the rest is for starts, the running chat, the crossover and chunks
}

TEST(ComparePlan, FullOneHasEveryKindOfTraffic) {
  const auto plan = FullPlan(kOptions);

  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->workloads.size(), 5);
  ExpectUsable(*plan);
}

TEST(ComparePlan, RatesAndLimitsAreThoseOfTheMachine) {
  PlanOptions options = kOptions;
  options.rate_factor = 8;
  options.limits = {.first_token_ms = 500, .inter_token_ms = 20};
  const auto plain = FullPlan(kOptions);
  const auto plan = FullPlan(options);

  ASSERT_TRUE(plain.ok() && plan.ok()) << plan.status();
  ExpectUsable(*plan);
  for (std::size_t i = 0; i < plan->workloads.size(); ++i) {
    const ComparedWorkload& traffic = plan->workloads[i];
    EXPECT_EQ(traffic.reference_rate, 8 * plain->workloads[i].reference_rate);
    EXPECT_EQ(traffic.rates.back(), 8 * plain->workloads[i].rates.back());
    EXPECT_EQ(traffic.limits.first_token_ms, 500);
    EXPECT_EQ(traffic.limits.inter_token_ms, 20);
  }
}

TEST(ComparePlan, ATraceThatIsTooShortForTheRateIsNamed) {
  PlanOptions options = kOptions;
  options.rate_factor = 1000;
  const auto plan = QuickPlan(options);

  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(plan.status().message())
                .find("azure_2023_code.csv: 8819 requests are too few for 2 a second times "
                      "--rate-factor 1000, which takes 48000"),
            std::string::npos)
      << plan.status();
}

TEST(ComparePlan, MissingTracesAreNamed) {
  const auto plan = QuickPlan({.traces = "no/such/folder"});

  EXPECT_NE(std::string(plan.status().message()).find("no/such/folder"), std::string::npos);
}

}  // namespace
}  // namespace baton
