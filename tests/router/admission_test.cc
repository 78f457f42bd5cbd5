#include "router/admission.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "google/rpc/error_details.pb.h"
#include "proto/status_conversion.h"
#include "tests/frontend/fake_generator.h"
#include "tests/support/wait_until.h"

namespace baton {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Keeps how one generation went.
class Outcome final : public GenerationObserver {
 public:
  void OnProgress(const GenerationResult&) override {}
  void OnPromptLogprobs(v1::Logprobs) override {}
  void OnToken(GeneratedToken) override { tokens_.fetch_add(1); }
  void OnChoiceEnd(std::uint32_t, v1::FinishReason) override {}
  void OnFinished(const GenerationResult& result) override {
    absl::MutexLock lock(&mutex_);
    result_ = result;
    End(absl::OkStatus());
  }
  void OnError(absl::Status status) override {
    absl::MutexLock lock(&mutex_);
    End(std::move(status));
  }

  // How it ended; waits for it.
  absl::Status Await() {
    absl::MutexLock lock(&mutex_);
    const auto ended = [this] { return ends_ > 0; };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&ended), absl::Seconds(20))) {
      return absl::UnknownError("did not end");
    }
    return status_;
  }
  bool ended() const {
    absl::MutexLock lock(&mutex_);
    return ends_ > 0;
  }
  int ends() const {
    absl::MutexLock lock(&mutex_);
    return ends_;
  }
  GenerationResult result() const {
    absl::MutexLock lock(&mutex_);
    return result_;
  }
  // From the call of Start to the end.
  Duration took() const {
    absl::MutexLock lock(&mutex_);
    return ended_at_ - started_at;
  }

  TimePoint started_at = Clock::System().Now();

 private:
  void End(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++ends_;
    status_ = std::move(status);
    ended_at_ = Clock::System().Now();
  }

  mutable absl::Mutex mutex_;
  int ends_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  GenerationResult result_ ABSL_GUARDED_BY(mutex_);
  TimePoint ended_at_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int> tokens_{0};
};

struct Wish {
  std::string tenant = "default";
  std::int32_t priority = 0;
  std::uint32_t choices = 1;
  std::optional<TimePoint> deadline;
};

GenerationJob MakeJob(const Wish& wish) {
  GenerationJob job;
  job.tenant = wish.tenant;
  job.priority = wish.priority;
  job.choices = wish.choices;
  job.deadline = wish.deadline;
  for (std::uint32_t i = 0; i < 64; ++i) {
    job.sequence.add_prompt(i);
  }
  job.sequence.set_max_tokens(64);
  return job;
}

struct Request {
  std::shared_ptr<Outcome> outcome = std::make_shared<Outcome>();
  std::shared_ptr<Generation> generation;
};

Request Ask(Generator& generator, const Wish& wish = {}) {
  Request request;
  request.outcome->started_at = Clock::System().Now();
  request.generation = generator.Start(MakeJob(wish), request.outcome);
  return request;
}

milliseconds RetryDelay(const absl::Status& status) {
  const auto hint = status.GetPayload("type.googleapis.com/google.rpc.RetryInfo");
  google::rpc::RetryInfo retry;
  EXPECT_TRUE(hint.has_value() && retry.ParseFromString(std::string(*hint))) << status;
  return std::chrono::duration_cast<milliseconds>(FromProtoDuration(retry.retry_delay()));
}

void ExpectQueueFull(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  const auto payload = status.GetPayload("type.googleapis.com/google.rpc.ErrorInfo");
  google::rpc::ErrorInfo info;
  EXPECT_TRUE(payload.has_value() && info.ParseFromString(std::string(*payload)));
  EXPECT_EQ(info.reason(), "QUEUE_FULL");
  EXPECT_GE(RetryDelay(status), milliseconds(100));
}

class AdmissionTest : public testing::Test {
 protected:
  std::unique_ptr<AdmissionGenerator> Make(std::size_t queue_size, std::size_t limit) {
    limit_ = limit;
    return std::make_unique<AdmissionGenerator>(
        inner_,
        AdmissionOptions{.queue_size = queue_size, .limit = [this] { return limit_.load(); }});
  }

  std::atomic<std::size_t> limit_{0};
  FakeGenerator inner_;
};

TEST_F(AdmissionTest, SoManyRunAndTheOthersWait) {
  const auto admission = Make(10, 2);
  std::vector<Request> requests;
  for (int i = 0; i < 5; ++i) {
    requests.push_back(Ask(*admission));
  }
  EXPECT_EQ(inner_.started(), 2u);
  EXPECT_EQ(admission->Status().running(), 2u);
  EXPECT_EQ(admission->Status().queued(), 3u);
  EXPECT_EQ(admission->Status().queue_size(), 10u);

  for (std::size_t i = 0; i < 5; ++i) {
    const auto fake = inner_.Await(i);
    ASSERT_NE(fake, nullptr);
    fake->Token(TokenId(1));
    fake->Finish(v1::FINISH_REASON_STOP);
    EXPECT_TRUE(requests[i].outcome->Await().ok());
  }
  EXPECT_EQ(admission->Status().running(), 0u);
  EXPECT_EQ(admission->Status().queued(), 0u);
  EXPECT_EQ(admission->Status().refused(), 0u);
  const auto queue = [](const Request& request) {
    return FromProtoDuration(request.outcome->result().finished.queue());
  };
  EXPECT_EQ(queue(requests[0]), Duration::zero()) << "it did not wait";
  EXPECT_GT(queue(requests[4]), Duration::zero()) << "the wait shows in the time line";
  EXPECT_LE(queue(requests[4]), requests[4].outcome->took());
}

// B32.
TEST_F(AdmissionTest, AFullQueueRefusesAtOnce) {
  const auto admission = Make(1, 1);
  const Request running = Ask(*admission);
  const Request waiting = Ask(*admission);
  for (int i = 0; i < 100; ++i) {
    const Request refused = Ask(*admission);
    ASSERT_TRUE(refused.outcome->ended()) << "before Start has returned";
    ExpectQueueFull(refused.outcome->Await());
  }
  EXPECT_EQ(admission->Status().refused(), 100u);
  EXPECT_EQ(inner_.started(), 1u);
  inner_.Await(0)->Finish(v1::FINISH_REASON_STOP);
  inner_.Await(1)->Finish(v1::FINISH_REASON_STOP);
  EXPECT_TRUE(running.outcome->Await().ok());
  EXPECT_TRUE(waiting.outcome->Await().ok());
}

TEST_F(AdmissionTest, TheMoreUrgentTakesTheLastPlace) {
  const auto admission = Make(2, 1);
  const Request running = Ask(*admission);
  const Request first = Ask(*admission, {.priority = 1});
  const Request second = Ask(*admission, {.priority = 1});
  const Request urgent = Ask(*admission, {.priority = 0});
  EXPECT_FALSE(urgent.outcome->ended());
  ExpectQueueFull(second.outcome->Await());
  inner_.Await(0)->Finish(v1::FINISH_REASON_STOP);
  EXPECT_EQ(inner_.Await(1)->job.priority, 0);
  inner_.Await(1)->Finish(v1::FINISH_REASON_STOP);
  inner_.Await(2)->Finish(v1::FINISH_REASON_STOP);
  EXPECT_TRUE(first.outcome->Await().ok());
  EXPECT_EQ(second.outcome->ends(), 1);
}

TEST_F(AdmissionTest, ADeadlineInTheQueueCostsNoWork) {
  const auto admission = Make(10, 1);
  const Request running = Ask(*admission);
  const Request late = Ask(*admission, {.deadline = Clock::System().Now() + milliseconds(60)});
  EXPECT_EQ(late.outcome->Await().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(late.outcome->took(), milliseconds(60) + seconds(2));
  EXPECT_EQ(admission->Status().queued(), 0u);
  inner_.Await(0)->Finish(v1::FINISH_REASON_STOP);
  EXPECT_TRUE(running.outcome->Await().ok());
  EXPECT_EQ(inner_.started(), 1u);
}

TEST_F(AdmissionTest, CancellingInTheQueueFreesThePlace) {
  const auto admission = Make(1, 1);
  const Request running = Ask(*admission);
  const Request gone = Ask(*admission);
  gone.generation->Cancel();
  EXPECT_EQ(gone.outcome->Await().code(), absl::StatusCode::kCancelled);
  gone.generation->Cancel();
  const Request next = Ask(*admission);
  EXPECT_FALSE(next.outcome->ended()) << "it has the place";
  running.generation->Cancel();  // passed on
  EXPECT_EQ(running.outcome->Await().code(), absl::StatusCode::kCancelled);
  ASSERT_NE(inner_.Await(1), nullptr);
  inner_.Await(1)->Finish(v1::FINISH_REASON_STOP);
  EXPECT_TRUE(next.outcome->Await().ok());
  EXPECT_EQ(gone.outcome->ends(), 1);
  next.generation->Cancel();  // after the end: nothing
}

TEST_F(AdmissionTest, ChoicesCountAsSequences) {
  const auto admission = Make(10, 4);
  const Request wide = Ask(*admission, {.choices = 3});
  const Request narrow = Ask(*admission);
  const Request pair = Ask(*admission, {.choices = 2});
  EXPECT_EQ(inner_.started(), 2u);
  EXPECT_EQ(admission->Status().running(), 4u);
  inner_.Await(0)->Finish(v1::FINISH_REASON_STOP);
  ASSERT_NE(inner_.Await(2), nullptr);
  EXPECT_EQ(admission->Status().running(), 3u);
  const Request widest = Ask(*admission, {.choices = 16});
  inner_.Await(1)->Finish(v1::FINISH_REASON_STOP);
  EXPECT_TRUE(narrow.outcome->Await().ok());
  EXPECT_EQ(inner_.started(), 3u) << "not beside another one";
  inner_.Await(2)->Finish(v1::FINISH_REASON_STOP);
  ASSERT_NE(inner_.Await(3), nullptr) << "but alone";
  inner_.Await(3)->Finish(v1::FINISH_REASON_STOP);
  EXPECT_TRUE(widest.outcome->Await().ok());
}

TEST_F(AdmissionTest, AGrowingFleetIsNoticed) {
  const auto admission = Make(10, 1);
  const Request running = Ask(*admission);
  const Request waiting = Ask(*admission);
  limit_ = 2;
  ASSERT_NE(inner_.Await(1), nullptr);
  inner_.Await(0)->Finish(v1::FINISH_REASON_STOP);
  inner_.Await(1)->Finish(v1::FINISH_REASON_STOP);
  EXPECT_TRUE(waiting.outcome->Await().ok());
}

TEST_F(AdmissionTest, WithoutAFleetNobodyWaits) {
  const auto admission = Make(1, 1);
  inner_.on_start = [](FakeGenerator::Fake& fake) {
    fake.Fail(absl::UnavailableError("no decode worker"));
  };
  limit_ = 0;
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(Ask(*admission).outcome->Await().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_TRUE(WaitUntil([&] { return admission->Status().running() == 0; }));
}

// A generator whose requests fail inside Start.
class FailingGenerator final : public Generator {
 public:
  std::shared_ptr<Generation> Start(GenerationJob,
                                    std::shared_ptr<GenerationObserver> observer) override {
    class Ended final : public Generation {
     public:
      void Cancel() override {}
    };
    if (hold.load()) {
      held = observer;
    } else {
      observer->OnError(absl::UnavailableError("nobody"));
    }
    return std::make_shared<Ended>();
  }
  std::atomic<bool> hold{true};
  std::shared_ptr<GenerationObserver> held;
};

// Each would otherwise admit the next one from inside its own end.
TEST_F(AdmissionTest, ADeepQueueOfFailingRequestsEnds) {
  constexpr int kRequests = 20'000;
  FailingGenerator failing;
  AdmissionGenerator admission(failing, {.queue_size = kRequests, .limit = [] { return 1u; }});
  const Request first = Ask(admission);
  failing.hold = false;
  std::vector<Request> rest;
  for (int i = 0; i < kRequests; ++i) {
    rest.push_back(Ask(admission));
  }
  std::exchange(failing.held, nullptr)->OnError(absl::UnavailableError("nobody"));
  for (const Request& request : rest) {
    EXPECT_EQ(request.outcome->Await().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(admission.Status().running(), 0u);
}

TEST_F(AdmissionTest, WhatWaitsAtTheEndIsToldSo) {
  auto admission = Make(10, 1);
  const Request running = Ask(*admission);
  const Request waiting = Ask(*admission);
  inner_.Await(0)->LingerWhenCancelled();
  admission->Start(MakeJob({}), std::make_shared<Outcome>());
  inner_.on_start = [](FakeGenerator::Fake& fake) { fake.Finish(v1::FINISH_REASON_STOP); };
  admission.reset();
  EXPECT_EQ(waiting.outcome->Await().code(), absl::StatusCode::kUnavailable);
  inner_.Await(0)->Finish(v1::FINISH_REASON_STOP);
  EXPECT_TRUE(running.outcome->Await().ok());
}

// A fleet that takes `sequences` at a time, each for `service`.
class SimulatedFleet final : public Generator {
 public:
  SimulatedFleet(std::size_t sequences, Duration service)
      : sequences_(sequences), service_(service) {}

  std::shared_ptr<Generation> Start(GenerationJob job,
                                    std::shared_ptr<GenerationObserver> observer) override {
    class Running final : public Generation {
     public:
      void Cancel() override {}
    };
    {
      absl::MutexLock lock(&mutex_);
      ++served_[job.tenant];
      over_ = over_ || ++running_ > sequences_;
    }
    timer_.Schedule(Clock::System().Now() + service_, [this, observer = std::move(observer)] {
      {
        absl::MutexLock lock(&mutex_);
        --running_;
      }
      GenerationResult result;
      result.finished.set_finish_reason(v1::FINISH_REASON_STOP);
      observer->OnFinished(result);
    });
    return std::make_shared<Running>();
  }

  std::map<std::string, int> served() const {
    absl::MutexLock lock(&mutex_);
    return served_;
  }
  bool over() const {  // it ever had more than it takes
    absl::MutexLock lock(&mutex_);
    return over_;
  }

 private:
  const std::size_t sequences_;
  const Duration service_;
  mutable absl::Mutex mutex_;
  std::map<std::string, int> served_ ABSL_GUARDED_BY(mutex_);
  std::size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  TimerThread timer_;
};

// Ten times what the fleet can do, for two seconds, open loop. F25, T42.
TEST(AdmissionOverload, ExcessIsRefusedAtOnceAndTheAdmittedFinish) {
  constexpr std::size_t kSequences = 8;
  constexpr milliseconds kService{20};  // so 400 requests a second
  constexpr std::size_t kQueue = 40;    // a tenth of a second
  SimulatedFleet fleet(kSequences, kService);
  AdmissionGenerator admission(fleet, {.queue_size = kQueue, .limit = [] { return kSequences; }});
  std::vector<Request> requests;
  TimerThread timer;
  constexpr int kRequests = 8'000;
  std::atomic<int> sent{0};
  requests.resize(kRequests);
  const TimePoint begin = Clock::System().Now();
  for (int i = 0; i < kRequests; ++i) {
    timer.Schedule(begin + i * std::chrono::microseconds(250), [&, i] {
      requests[static_cast<std::size_t>(i)] = Ask(admission);
      sent.fetch_add(1);
    });
  }
  ASSERT_TRUE(WaitUntil([&] { return sent.load() == kRequests; }, seconds(60)));
  const TimePoint end = Clock::System().Now();

  int admitted = 0;
  Duration slowest_refusal{0};
  Duration slowest_admitted{0};
  for (const Request& request : requests) {
    const absl::Status status = request.outcome->Await();
    ASSERT_EQ(request.outcome->ends(), 1);
    if (status.ok()) {
      ++admitted;
      slowest_admitted = std::max(slowest_admitted, request.outcome->took());
    } else {
      ExpectQueueFull(status);
      slowest_refusal = std::max(slowest_refusal, request.outcome->took());
    }
  }
  const Duration recovery = Clock::System().Now() - end;
  const double load_seconds = duration<double>(end - begin).count();
  std::printf(
      "offered %.0f/s, admitted %d of %d (%.0f/s), slowest refusal %.2f ms, slowest admitted "
      "%.0f ms, recovered in %.0f ms\n",
      kRequests / load_seconds, admitted, kRequests, admitted / load_seconds,
      duration<double, std::milli>(slowest_refusal).count(),
      duration<double, std::milli>(slowest_admitted).count(),
      duration<double, std::milli>(recovery).count());
  EXPECT_FALSE(fleet.over());
  EXPECT_LT(slowest_refusal, milliseconds(50));
  const double capacity = kSequences / duration<double>(kService).count();
  EXPECT_GT(admitted, 0.5 * capacity * load_seconds) << "the fleet was kept busy";
  // Its place in the queue and its own time, with room for a busy machine.
  EXPECT_LT(slowest_admitted, 5 * (kService + milliseconds(kQueue * 1000 / 400)));
  EXPECT_LT(recovery, seconds(5));
  EXPECT_EQ(admission.Status().running(), 0u);
  EXPECT_EQ(admission.Status().queued(), 0u);
}

// One tenant floods at ten times the capacity; another asks for one thing after the other.
TEST(AdmissionOverload, AFloodDelaysItsOwnTenant) {
  constexpr std::size_t kSequences = 4;
  constexpr milliseconds kService{20};
  constexpr std::size_t kQueue = 200;  // a second of work
  SimulatedFleet fleet(kSequences, kService);
  AdmissionGenerator admission(fleet, {.queue_size = kQueue, .limit = [] { return kSequences; }});
  std::atomic<bool> stop{false};
  std::vector<Request> flood;
  std::jthread flooding([&] {
    while (!stop.load()) {
      const std::size_t room = kQueue + kSequences - admission.Status().queued();
      for (std::size_t i = 0; i < room; ++i) {
        flood.push_back(Ask(admission, {.tenant = "flood"}));
      }
      WaitUntil([&] { return stop.load() || admission.Status().queued() < kQueue; });
    }
  });
  ASSERT_TRUE(WaitUntil([&] { return admission.Status().queued() == kQueue; }));
  Duration slowest{0};
  constexpr int kPolite = 20;
  for (int i = 0; i < kPolite; ++i) {
    const Request polite = Ask(admission, {.tenant = "polite"});
    ASSERT_TRUE(polite.outcome->Await().ok()) << "it has its place in the queue";
    slowest = std::max(slowest, polite.outcome->took());
  }
  stop = true;
  flooding.join();
  for (const Request& request : flood) {
    EXPECT_NE(request.outcome->Await().code(), absl::StatusCode::kUnknown);
  }
  std::printf("slowest of the polite tenant: %.0f ms; the flood's queue is %zu ms long\n",
              duration<double, std::milli>(slowest).count(),
              kQueue * static_cast<std::size_t>(kService.count()) / kSequences);
  EXPECT_EQ(fleet.served()["polite"], kPolite);
  EXPECT_LT(slowest, milliseconds(500)) << "not behind all of the flood, which waits for a second";
}

TEST(AdmissionOverload, TheRetryDelayFollowsThePace) {
  SimulatedFleet fleet(1, milliseconds(50));
  AdmissionGenerator admission(fleet, {.queue_size = 8, .limit = [] { return 1u; }});
  std::vector<Request> requests;
  for (int i = 0; i < 9; ++i) {
    requests.push_back(Ask(admission));
  }
  EXPECT_GE(RetryDelay(Ask(admission).outcome->Await()), seconds(1)) << "not known yet";
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(requests[static_cast<std::size_t>(i)].outcome->Await().ok());
  }
  Request refused;
  do {  // fill what has become free
    refused = Ask(admission);
    requests.push_back(refused);
  } while (!refused.outcome->ended());
  const milliseconds delay = RetryDelay(refused.outcome->Await());
  EXPECT_GE(delay, milliseconds(350)) << "eight wait, 50 ms each";
  EXPECT_LE(delay, milliseconds(3'000)) << "on a busy machine too";
  for (const Request& request : requests) {
    EXPECT_NE(request.outcome->Await().code(), absl::StatusCode::kUnknown);
  }
}

}  // namespace
}  // namespace baton
