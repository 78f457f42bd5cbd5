#include "frontend/request_meter.h"

#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <chrono>

#include "frontend/metric_families.h"
#include "frontend/timer_thread.h"
#include "proto/status_conversion.h"
#include "tests/frontend/completions_harness.h"
#include "tests/frontend/stream_call.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

std::uint64_t CountOf(const Histogram& histogram) {
  std::uint64_t count = 0;
  for (const std::uint64_t one : histogram.counts()) {
    count += one;
  }
  return count;
}

// Hears nothing.
class Deaf final : public GenerationObserver {
 public:
  void OnProgress(const GenerationResult&) override {}
  void OnPromptLogprobs(v1::Logprobs) override {}
  void OnToken(GeneratedToken) override {}
  void OnChoiceEnd(std::uint32_t, v1::FinishReason) override {}
  void OnFinished(const GenerationResult&) override {}
  void OnError(absl::Status) override {}
};

GenerationResult Ended(v1::FinishReason reason) {
  GenerationResult result;
  result.finished.set_finish_reason(reason);
  return result;
}

TEST(RequestMeter, CountsARequestOnceHoweverManyChoices) {
  RequestMeter meter;
  const auto observer =
      meter.Observe({.prompt_tokens = 40, .max_tokens = 7, .choices = 2}, std::make_shared<Deaf>());
  for (const std::uint32_t choice : {0u, 0u, 1u, 0u, 1u}) {
    observer->OnToken({.id = TokenId(1), .choice = choice});
  }
  EXPECT_EQ(CountOf(meter.totals().first_token), 1u) << "known at the first token";
  observer->OnChoiceEnd(1, v1::FINISH_REASON_STOP);
  GenerationResult result = Ended(v1::FINISH_REASON_LENGTH);
  result.finished.set_split(true);
  *result.finished.mutable_queue() = ToProtoDuration(milliseconds(30));
  *result.finished.mutable_transfer() = ToProtoDuration(milliseconds(4));
  observer->OnFinished(result);

  const RequestTotals totals = meter.totals();
  EXPECT_EQ(CountOf(totals.first_token), 1u);
  EXPECT_EQ(CountOf(totals.inter_token), 3u) << "two in one choice, one in the other";
  EXPECT_EQ(CountOf(totals.per_output_token), 2u);
  EXPECT_EQ(CountOf(totals.end_to_end), 1u);
  EXPECT_NEAR(totals.queue.sum(), 0.030, 1e-9);
  EXPECT_NEAR(totals.transfer.sum(), 0.004, 1e-9);
  EXPECT_EQ(totals.prompt_tokens_sum, 40u);
  EXPECT_EQ(totals.generation_tokens_sum, 5u);
  EXPECT_EQ(totals.full, 1u);
  EXPECT_EQ(totals.stopped, 0u);
}

// B53: what fails is no success.
TEST(RequestMeter, FailuresAreCountedByCode) {
  RequestMeter meter;
  for (const absl::Status& status :
       {absl::CancelledError("x"), absl::NotFoundError("x"), absl::NotFoundError("x")}) {
    meter.Observe({.prompt_tokens = 1}, std::make_shared<Deaf>())->OnError(status);
  }
  MetricFamilies families("tiny");
  AddRequestMetrics(families, meter.totals());
  const std::string text = prometheus::TextSerializer().Serialize(families.Take());
  for (const char* line :
       {"vllm:request_success_total{finished_reason=\"stop\",model_name=\"tiny\"} 0\n",
        "vllm:request_success_total{finished_reason=\"abort\",model_name=\"tiny\"} 1\n",
        "vllm:request_success_total{finished_reason=\"error\",model_name=\"tiny\"} 2\n",
        "baton_request_errors_total{code=\"NOT_FOUND\",model_name=\"tiny\"} 2\n",
        "vllm:time_to_first_token_seconds_count{model_name=\"tiny\"} 0\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
}

// B57: against what the client measures itself.
TEST(RequestMeter, TimesAreThoseTheClientSees) {
  CompletionsHarness harness;  // the generator of the service, with a meter in front of it
  RequestMeter meter;
  MeteredGenerator metered(harness.generator, meter);
  TimerThread timer;
  harness.generator.on_start = [&timer](FakeGenerator::Fake& fake) {
    const TimePoint now = Clock::System().Now();
    timer.Schedule(now + milliseconds(200), [&fake] { fake.Token(TokenId(70)); });
    timer.Schedule(now + milliseconds(500), [&fake] {
      fake.Token(TokenId(71));
      fake.Finish(v1::FINISH_REASON_STOP);
    });
  };
  CompletionsService service(*CompletionsHarness::SharedModel(), metered, {});
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  const auto stub = v1::Completions::NewStub(
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const TimePoint sent = Clock::System().Now();
  const auto reader = stub->StreamComplete(&context, Request());
  v1::CompleteChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  const double first = MetricSeconds(Clock::System().Now() - sent);
  while (reader->Read(&chunk)) {
  }
  const double total = MetricSeconds(Clock::System().Now() - sent);
  ASSERT_TRUE(reader->Finish().ok());
  server->Shutdown(std::chrono::system_clock::now());

  const RequestTotals totals = meter.totals();
  EXPECT_NEAR(totals.first_token.sum(), first, 0.2 * first);
  EXPECT_NEAR(totals.end_to_end.sum(), total, 0.2 * total);
  EXPECT_NEAR(totals.inter_token.sum(), total - first, 0.2 * (total - first));
  EXPECT_EQ(totals.stopped, 1u);
}

}  // namespace
}  // namespace baton
