#include "router/worker_costs.h"

#include <gtest/gtest.h>

#include <limits>

namespace baton {
namespace {

v1::WorkerDescription Worker(v1::Role role, double speed) {
  v1::WorkerDescription worker;
  worker.set_role(role);
  worker.set_max_batch_tokens(256);
  worker.mutable_identity()->set_layers(30);
  worker.mutable_identity()->set_block_tokens(16);
  worker.mutable_identity()->set_layer_bytes(12'288);
  if (speed == 0) {
    return worker;
  }
  for (const double tokens : {256.0, 1024.0}) {
    v1::WorkerRates::PrefillRate& rate = *worker.mutable_rates()->add_prefill();
    rate.set_prompt_tokens(tokens);
    rate.set_tokens_per_second(2000 * speed);
  }
  v1::WorkerRates::DecodeStep& step = *worker.mutable_rates()->add_decode();
  step.set_batch(1);
  step.set_depth_tokens(500);
  step.set_step_seconds(0.02 / speed);
  v1::WorkerRates::TransportRate& transport = *worker.mutable_rates()->add_transports();
  transport.set_name("tcp");
  transport.set_fixed_seconds(0.002);
  transport.set_bytes_per_second(1e9);
  return worker;
}

TEST(WorkerCosts, AreNominalUntilSomethingIsMeasured) {
  const std::vector<v1::WorkerDescription> workers = {Worker(v1::ROLE_DECODE, 0)};
  const std::vector<WorkerCosts> costs = FitWorkerCosts(workers).each;
  ASSERT_EQ(costs.size(), 1u);
  EXPECT_EQ(costs[0].model, NominalCosts());
  EXPECT_FALSE(costs[0].transport.has_value());
  EXPECT_TRUE(FitWorkerCosts({}).each.empty());
  EXPECT_EQ(FitWorkerCosts({}).fleet.model, NominalCosts());
}

TEST(WorkerCosts, ANewWorkerIsTakenToBeAsTheOthers) {
  const std::vector<v1::WorkerDescription> workers = {
      Worker(v1::ROLE_DECODE, 1), Worker(v1::ROLE_PREFILL, 1.2), Worker(v1::ROLE_DECODE, 0)};
  const std::vector<WorkerCosts> costs = FitWorkerCosts(workers).each;
  EXPECT_EQ(costs[0].model, costs[1].model) << "noise is no difference";
  EXPECT_EQ(costs[0].model, costs[2].model);
  EXPECT_NEAR(costs[0].model->PrefillSeconds(1024), 1024 / 2200.0, 0.02);
  EXPECT_EQ(costs[2].transport->name, "tcp");
}

TEST(WorkerCosts, ASlowWorkerHasItsOwn) {
  const std::vector<v1::WorkerDescription> workers = {
      Worker(v1::ROLE_DECODE, 1), Worker(v1::ROLE_DECODE, 1), Worker(v1::ROLE_DECODE, 1),
      Worker(v1::ROLE_DECODE, 0.5)};
  const std::vector<WorkerCosts> costs = FitWorkerCosts(workers).each;
  EXPECT_EQ(costs[0].model, costs[1].model);
  EXPECT_NEAR(costs[3].model->PrefillSeconds(1024), 2 * costs[0].model->PrefillSeconds(1024), 0.05);
  EXPECT_NEAR(costs[3].model->DecodeStepSeconds(1, 500), 0.04, 0.002);
}

// Whatever a worker sends: the others' costs stay, and its own are usable.
TEST(WorkerCosts, AbsurdRatesAreLeftOut) {
  v1::WorkerDescription absurd = Worker(v1::ROLE_DECODE, 1);
  absurd.mutable_rates()->mutable_prefill(0)->set_tokens_per_second(
      std::numeric_limits<double>::quiet_NaN());
  absurd.mutable_rates()->mutable_decode(0)->set_step_seconds(-1);
  const std::vector<v1::WorkerDescription> workers = {Worker(v1::ROLE_DECODE, 1), absurd};
  const std::vector<WorkerCosts> costs = FitWorkerCosts(workers).each;
  EXPECT_NEAR(costs[0].model->PrefillSeconds(1024), 0.512, 0.02);
  EXPECT_EQ(costs[1].model, costs[0].model);
}

void TimeLoads(v1::WorkerDescription& worker,
               v1::KvTier tier,
               double fixed_seconds,
               double bytes_per_second) {
  v1::WorkerRates::TierRate& rate = *worker.mutable_rates()->add_tiers();
  rate.set_tier(tier);
  rate.set_fixed_seconds(fixed_seconds);
  rate.set_bytes_per_second(bytes_per_second);
}

TEST(WorkerCosts, LoadsAreAsMeasuredThereOrAtOthersOrNominal) {
  std::vector<v1::WorkerDescription> workers(4, Worker(v1::ROLE_DECODE, 0));
  TimeLoads(workers[0], v1::KV_TIER_HOST, 0.001, 1e9);
  TimeLoads(workers[1], v1::KV_TIER_HOST, 0.003, 3e9);
  TimeLoads(workers[2], v1::KV_TIER_HOST, 0.002, 2e9);
  const std::vector<WorkerCosts> costs = FitWorkerCosts(workers).each;
  EXPECT_EQ(costs[1].tiers[v1::KV_TIER_HOST].fixed_seconds, 0.003);
  EXPECT_EQ(costs[1].tiers[v1::KV_TIER_HOST].bytes_per_second, 3e9);
  EXPECT_EQ(costs[3].tiers[v1::KV_TIER_HOST].fixed_seconds, 0.002);
  EXPECT_EQ(costs[3].tiers[v1::KV_TIER_HOST].bytes_per_second, 2e9);
  EXPECT_EQ(costs[1].tiers[v1::KV_TIER_DISK].bytes_per_second,
            NominalTierRates()[v1::KV_TIER_DISK].bytes_per_second);
}

TEST(WorkerCosts, AbsurdLoadsAreLeftOut) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  std::vector<v1::WorkerDescription> workers = {Worker(v1::ROLE_DECODE, 1)};
  TimeLoads(workers[0], v1::KV_TIER_HOST, -1, 1e9);
  TimeLoads(workers[0], v1::KV_TIER_HOST, kNan, 1e9);
  TimeLoads(workers[0], v1::KV_TIER_HOST, 0, 0);
  TimeLoads(workers[0], v1::KV_TIER_DISK, 0, kNan);
  TimeLoads(workers[0], v1::KV_TIER_DEVICE, 0, 5);
  TimeLoads(workers[0], static_cast<v1::KvTier>(99), 0, 5);
  const WorkerCosts costs = FitWorkerCosts(workers).each[0];
  for (std::size_t tier = 0; tier < kKvTiers; ++tier) {
    EXPECT_EQ(costs.tiers[tier].bytes_per_second, NominalTierRates()[tier].bytes_per_second);
    EXPECT_EQ(costs.tiers[tier].fixed_seconds, NominalTierRates()[tier].fixed_seconds);
  }
}

}  // namespace
}  // namespace baton
