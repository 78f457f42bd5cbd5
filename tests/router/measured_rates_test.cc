#include "router/measured_rates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace baton {
namespace {

using testing::HasSubstr;

// A worker of a model with 32 KiB of KV a token: 16 layers of 2 KiB.
v1::WorkerDescription Worker(v1::Role role) {
  v1::WorkerDescription worker;
  worker.set_role(role);
  worker.mutable_identity()->set_layers(16);
  worker.mutable_identity()->set_block_tokens(16);
  worker.mutable_identity()->set_layer_bytes(32 << 10);
  worker.set_context_tokens(4096);
  worker.set_max_batch_tokens(256);
  return worker;
}

void AddPrefill(v1::WorkerDescription& worker, double tokens, double tokens_per_second) {
  v1::WorkerRates::PrefillRate& rate = *worker.mutable_rates()->add_prefill();
  rate.set_prompt_tokens(tokens);
  rate.set_tokens_per_second(tokens_per_second);
}
void AddDecode(v1::WorkerDescription& worker, double batch, double depth, double seconds) {
  v1::WorkerRates::DecodeStep& step = *worker.mutable_rates()->add_decode();
  step.set_batch(batch);
  step.set_depth_tokens(depth);
  step.set_step_seconds(seconds);
}
void AddTransport(v1::WorkerDescription& worker,
                  const std::string& name,
                  double fixed_seconds,
                  double bytes_per_second) {
  v1::WorkerRates::TransportRate& rate = *worker.mutable_rates()->add_transports();
  rate.set_name(name);
  rate.set_fixed_seconds(fixed_seconds);
  rate.set_bytes_per_second(bytes_per_second);
}

// 1,000 tokens a second, steps of 10 ms and more, 1 GB/s over tcp.
std::vector<v1::WorkerDescription> Fleet() {
  std::vector<v1::WorkerDescription> workers = {Worker(v1::ROLE_PREFILL), Worker(v1::ROLE_DECODE)};
  AddPrefill(workers[0], 100, 1000);
  AddPrefill(workers[0], 1000, 1000);
  AddDecode(workers[1], 1, 100, 0.010);
  AddDecode(workers[1], 8, 100, 0.017);
  AddTransport(workers[1], "tcp", 0.001, 1e9);
  return workers;
}

std::string Problem(std::span<const v1::WorkerDescription> workers) {
  const auto crossover = FindCrossover(workers);
  EXPECT_EQ(crossover.status().code(), absl::StatusCode::kFailedPrecondition);
  return std::string(crossover.status().message());
}

TEST(MeasuredRates, AreTheWorkersOwnAndWhatTheIdentitySays) {
  const auto rates = MergeRates(Fleet());
  ASSERT_TRUE(rates.ok()) << rates.status();
  EXPECT_EQ(rates->block_tokens, 16);
  EXPECT_EQ(rates->layers, 16);
  EXPECT_EQ(rates->kv_bytes_per_token, 32 << 10);
  EXPECT_EQ(rates->max_batch_tokens, 256);
  ASSERT_EQ(rates->prefill.size(), 2u);
  EXPECT_EQ(rates->prefill[1].prompt_tokens, 1000);
  EXPECT_EQ(rates->prefill[1].tokens_per_second, 1000);
  ASSERT_EQ(rates->decode.size(), 2u);
  EXPECT_EQ(rates->decode[1].batch, 8);
  EXPECT_EQ(rates->decode[1].step_seconds, 0.017);
  ASSERT_EQ(rates->transports.size(), 1u);
  EXPECT_EQ(rates->transports[0].name, "tcp");
  EXPECT_EQ(rates->transports[0].bytes_per_second, 1e9);
}

TEST(MeasuredRates, AreMediansOverTheWorkers) {
  std::vector<v1::WorkerDescription> workers = Fleet();
  for (const double rate : {900.0, 10.0}) {  // one is slow: it says nothing of the others
    workers.push_back(Worker(v1::ROLE_PREFILL));
    AddPrefill(workers.back(), 120, rate);
    AddDecode(workers.back(), 1, 110, 0.5);
    AddTransport(workers.back(), "mapped", 0, 9e9);
    AddTransport(workers.back(), "tcp", 0.003, 3e9);
  }
  const auto rates = MergeRates(workers);
  ASSERT_TRUE(rates.ok()) << rates.status();
  ASSERT_EQ(rates->prefill.size(), 2u);
  EXPECT_EQ(rates->prefill[0].prompt_tokens, 120);
  EXPECT_EQ(rates->prefill[0].tokens_per_second, 900);
  EXPECT_EQ(rates->decode[0].step_seconds, 0.5);
  ASSERT_EQ(rates->transports.size(), 2u);
  EXPECT_EQ(rates->transports[0].name, "tcp");  // most workers have used it
  EXPECT_EQ(rates->transports[0].fixed_seconds, 0.003);
  EXPECT_EQ(rates->transports[1].name, "mapped");
}

TEST(MeasuredRates, WorkersOfAnotherLayoutAreLeftOut) {
  std::vector<v1::WorkerDescription> workers = Fleet();
  workers.push_back(Worker(v1::ROLE_PREFILL));
  workers.back().mutable_identity()->set_layer_bytes(1);
  AddPrefill(workers.back(), 100, 1);
  const auto rates = MergeRates(workers);
  ASSERT_TRUE(rates.ok()) << rates.status();
  EXPECT_EQ(rates->prefill[0].tokens_per_second, 1000);
  EXPECT_EQ(rates->kv_bytes_per_token, 32 << 10);
}

TEST(MeasuredRates, SayWhatIsMissing) {
  EXPECT_THAT(Problem({}), HasSubstr("no decode worker"));
  std::vector<v1::WorkerDescription> workers = {Worker(v1::ROLE_DECODE)};
  EXPECT_THAT(Problem(workers), HasSubstr("no prefill worker"));
  workers.push_back(Worker(v1::ROLE_PREFILL));
  EXPECT_THAT(Problem(workers), HasSubstr("prompt alone"));
  AddPrefill(workers[1], 100, 1000);
  EXPECT_THAT(Problem(workers), HasSubstr("no worker has decoded"));
  AddDecode(workers[0], 1, 100, 0.010);
  EXPECT_THAT(Problem(workers), HasSubstr("one length"));
  EXPECT_TRUE(MergeRates(workers).ok());  // the file of baton-plan may have no more
  AddPrefill(workers[1], 1000, 1000);
  EXPECT_THAT(Problem(workers), HasSubstr("one batch and depth"));
  AddDecode(workers[0], 8, 100, 0.017);
  EXPECT_THAT(Problem(workers), HasSubstr("no KV blocks have travelled"));
  AddTransport(workers[0], "tcp", 0.001, 1e9);
  EXPECT_TRUE(FindCrossover(workers).ok());
}

// Whoever registers may send anything.
TEST(MeasuredRates, AbsurdNumbersAreLeftOut) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<v1::WorkerDescription> workers = Fleet();
  v1::WorkerDescription& odd = workers.emplace_back(Worker(v1::ROLE_PREFILL));
  for (const double number : {kNan, kInfinity, -kInfinity, -1.0, 0.0, 1e300, 1e-320}) {
    AddPrefill(odd, 100, number);
    AddPrefill(odd, number, 1);
    AddDecode(odd, number, 100, 1);
    AddDecode(odd, 1, -1, 1);
    AddDecode(odd, 1, 100, number);
    AddTransport(odd, "tcp", number, kNan);
    AddTransport(odd, "tcp", 0.5, number);
  }
  AddTransport(odd, "", 0, 1);
  AddTransport(odd, std::string(65, 'x'), 0, 1);
  for (int i = 0; i < 100; ++i) {
    AddTransport(odd, "t" + std::to_string(i), 0, 1);
  }
  workers.push_back(Worker(v1::ROLE_PREFILL));
  workers.back().mutable_identity()->set_block_tokens(0);
  workers.push_back(Worker(v1::ROLE_PREFILL));
  workers.back().mutable_identity()->set_layers(-5);

  const auto rates = MergeRates(workers);

  ASSERT_TRUE(rates.ok()) << rates.status();
  EXPECT_LE(rates->transports.size(), 16u);
  EXPECT_TRUE(FitCosts(workers).ok());
  EXPECT_TRUE(FindCrossover(workers).ok());
}

// Nothing is computed for a split when the decode worker has nothing else to do.
TEST(Crossover, ASplitNeverPaysBesideAnIdleDecodeWorker) {
  const auto crossover = FindCrossover(Fleet());
  ASSERT_TRUE(crossover.ok()) << crossover.status();
  EXPECT_EQ(*crossover, std::nullopt);
}

TEST(Crossover, IsWhereTheTwoPredictionsMeet) {
  std::vector<v1::WorkerDescription> workers = Fleet();
  v1::EngineLoad& load = *workers[1].mutable_load();
  load.set_decoding_sequences(4);
  load.set_running_context_tokens(400);
  const auto crossover = FindCrossover(workers);
  ASSERT_TRUE(crossover.ok()) << crossover.status();
  ASSERT_TRUE(crossover->has_value());
  const CostModel model = *FitCosts(workers);
  const auto gain = [&](double tokens) {
    const FirstTokenTime whole =
        model.PredictColocated({tokens}, {.running_sequences = 4, .depth_tokens = 100});
    const FirstTokenTime split =
        PredictDisaggregated({model, {}, model.rates().transports[0]}, {tokens}, {tokens});
    return whole.decoding_seconds() - split.decoding_seconds();
  };
  EXPECT_GT(gain(**crossover), 0);
  if (**crossover > 1) {
    EXPECT_LE(gain(**crossover - 1), 0);
  }

  // Prompts that wait at the prefill worker make it later.
  workers[0].mutable_load()->set_queued_prefill_tokens(2000);
  const auto later = FindCrossover(workers);
  ASSERT_TRUE(later.ok());
  EXPECT_TRUE(!later->has_value() || **later > **crossover);
}

TEST(Crossover, LooksNoFartherThanTheContext) {
  std::vector<v1::WorkerDescription> workers = Fleet();
  workers[1].mutable_load()->set_decoding_sequences(4);
  workers[1].mutable_load()->set_running_context_tokens(400);
  workers[0].set_context_tokens(1);
  const auto crossover = FindCrossover(workers);
  ASSERT_TRUE(crossover.ok());
  EXPECT_TRUE(!crossover->has_value() || **crossover == 1u);
}

TEST(Crossover, IsShownWithTheConfiguredLimit) {
  const v1::Crossover known = DescribeCrossover(std::optional(300u), 512, false);
  EXPECT_TRUE(known.known());
  EXPECT_TRUE(known.pays());
  EXPECT_EQ(known.prompt_tokens(), 300u);
  EXPECT_EQ(known.configured_tokens(), 512u);
  const v1::Crossover never = DescribeCrossover(std::optional<std::uint32_t>(), 512, true);
  EXPECT_TRUE(never.known());
  EXPECT_FALSE(never.pays());
  EXPECT_TRUE(never.in_use());
  const v1::Crossover unknown =
      DescribeCrossover(absl::FailedPreconditionError("there is no prefill worker"), 512, false);
  EXPECT_FALSE(unknown.known());
  EXPECT_EQ(unknown.why_unknown(), "there is no prefill worker");
}

TEST(AverageLoad, IsThatOfEachRole) {
  std::vector<v1::WorkerDescription> workers = {Worker(v1::ROLE_PREFILL), Worker(v1::ROLE_DECODE),
                                                Worker(v1::ROLE_DECODE)};
  workers[0].mutable_load()->set_queued_prefill_tokens(700);
  workers[1].mutable_load()->set_decoding_sequences(3);
  workers[1].mutable_load()->set_running_context_tokens(900);
  workers[2].mutable_load()->set_decoding_sequences(1);
  workers[2].mutable_load()->set_running_context_tokens(100);
  workers[2].mutable_load()->set_queued_prefill_tokens(50);
  const FleetLoad load = AverageLoad(workers);
  EXPECT_EQ(load.prefill.queued_prefill_tokens, 700);
  EXPECT_EQ(load.decode.queued_prefill_tokens, 25);
  EXPECT_EQ(load.decode.running_sequences, 2);
  EXPECT_EQ(load.decode.depth_tokens, 250);
}

TEST(RatesProto, HasEveryMemberOfTheFile) {
  const MeasuredRates rates = *MergeRates(Fleet());
  const v1::Rates proto = ToProto(rates);
  EXPECT_EQ(proto.version(), 1u);
  EXPECT_EQ(proto.source(), rates.source);
  EXPECT_EQ(proto.block_tokens(), 16);
  EXPECT_EQ(proto.kv_bytes_per_token(), 32 << 10);
  EXPECT_EQ(proto.layers(), 16);
  EXPECT_EQ(proto.max_batch_tokens(), 256);
  ASSERT_EQ(proto.prefill_size(), 2);
  EXPECT_EQ(proto.prefill(1).prompt_tokens(), 1000);
  ASSERT_EQ(proto.decode_size(), 2);
  EXPECT_EQ(proto.decode(1).step_seconds(), 0.017);
  ASSERT_EQ(proto.transports_size(), 1);
  EXPECT_EQ(proto.transports(0).name(), "tcp");
  EXPECT_EQ(proto.transports(0).fixed_seconds(), 0.001);
}

}  // namespace
}  // namespace baton
