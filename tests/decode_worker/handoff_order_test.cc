// What happens in a handoff at the same moment as something else: cancellations, deadlines, first
// tokens and ends, in every order.
#include <algorithm>
#include <atomic>
#include <functional>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/failpoint.h"
#include "tests/decode_worker/two_sided_sessions.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

// T01: the client leaves while its blocks wait for values that nobody will ever send.
TEST_F(DecodeSessionsTest, CancellingAWaitForALostPrefillWorkerFreesTheBlocksAtOnce) {
  std::atomic<bool> asked = false;
  ScriptedPrefill lost([&asked](grpc::ServerContext& context, auto&, auto&) {
    asked = true;
    WaitUntilCancelled(context);
    return grpc::Status::CANCELLED;
  });
  DecodeNode patient(model_.file(), inproc::MakeTransport(hub_), {.accept = std::chrono::hours(1)});
  DecodeJob job = MakeJob(200, 10, 13);
  job.prefill = {lost.candidate()};
  std::shared_ptr<Generation> generation;
  const auto observer = patient.Start(std::move(job), &generation);
  ASSERT_TRUE(WaitUntil([&asked] { return asked.load(); }));
  EXPECT_LT(patient.core->engine().load().free_blocks, patient.core->engine().load().total_blocks);

  generation->Cancel();

  EXPECT_EQ(observer->WaitForEnd().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(AllBlocksFree(*patient.core));
  EXPECT_TRUE(observer->tokens().empty());
}

// T04: the client leaves at the instant at which the prefill is done.
TEST_F(DecodeSessionsTest, CancellationAtTheFirstTokenAThousandTimes) {
  for (int i = 0; i < 1000; ++i) {
    DecodeJob job = MakeJob(40, 200, 15);
    job.prefill = {prefill_.candidate()};
    std::shared_ptr<Generation> generation;
    const auto observer = decode_.Start(std::move(job), &generation);
    observer->WaitForTokens(1);
    generation->Cancel();
    ASSERT_EQ(observer->WaitForEnd().code(), absl::StatusCode::kCancelled);
  }
  ExpectAllFree();
}

// What a test does when the process meets one failpoint.
class AtFailpoint final : public FailpointHandler {
 public:
  AtFailpoint(std::string name, std::function<void()> action)
      : name_(std::move(name)), action_(std::move(action)) {
    failpoint_handler.store(this, std::memory_order_release);
  }
  // REQUIRES: nobody is in a failpoint any more.
  ~AtFailpoint() override { failpoint_handler.store(nullptr, std::memory_order_release); }

  absl::Status OnHit(const char* name) override {
    if (name == name_) {
      action_();
    }
    return absl::OkStatus();
  }

 private:
  const std::string name_;
  const std::function<void()> action_;
};

// T04, B36: the cancellation comes from within the step in which the prefill worker is done, and
// from within those in which the decode worker has the last piece and adopts the blocks.
TEST_F(DecodeSessionsTest, CancellationInTheVeryStepThatEndsAThousandTimes) {
  DecodeJob job = MakeJob(40, 60, 15);
  const std::vector<std::uint32_t> expected = Colocated(job);
  job.prefill = {prefill_.candidate()};
  struct Step {
    const char* name;
    int times;
  };
  for (const auto& [step, times] : {Step{"prefill.kServing", 1000}, Step{"decode.kLanded", 200},
                                    Step{"decode.kAdopted", 200}}) {
    SCOPED_TRACE(step);
    absl::Mutex mutex;
    std::shared_ptr<Generation> generation;
    int hits = 0;
    const AtFailpoint cancel(step, [&] {
      absl::MutexLock lock(&mutex);
      ++hits;
      generation->Cancel();
    });
    const auto cancelled = [&] {
      absl::MutexLock lock(&mutex);
      return hits;
    };
    int asked = 0;
    while (cancelled() < times && asked < 4 * times) {
      const int before = cancelled();
      std::shared_ptr<RecordingObserver> observer;
      {
        absl::MutexLock lock(&mutex);
        observer = decode_.Start(job, &generation);
      }
      ++asked;
      const absl::Status end = observer->WaitForEnd();
      const std::vector<std::uint32_t> tokens = observer->tokens();
      ASSERT_LE(tokens.size(), expected.size());
      EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), expected.begin()));
      if (end.ok()) {
        // The last piece may land before the prefill worker's engine has said that it is done; then
        // there is no such step.
        ASSERT_EQ(tokens.size(), expected.size());
        ASSERT_EQ(cancelled(), before);
      } else {
        ASSERT_EQ(end.code(), absl::StatusCode::kCancelled) << end;
      }
    }
    EXPECT_EQ(cancelled(), times) << "of " << asked;
    ExpectAllFree();
  }
  const auto observer = decode_.Start(job);
  EXPECT_TRUE(observer->WaitForEnd().ok());
  EXPECT_EQ(observer->tokens(), expected);
}

// T14: the attempt is given up, for its first token, while the last piece lands: nobody may wait
// for another token.
TEST_F(DecodeSessionsTest, AnAttemptThatFailsWhileItsBlocksLandIsNotWaitedFor) {
  absl::Notification landing;
  absl::Notification given_up;
  ScriptedPrefill relay(
      [&](grpc::ServerContext& outer, const v1::PrefillRequest& request, auto& writer) {
        Relay(request, [&](v1::PrefillEvent& event) {
          if (event.has_first_token()) {
            EXPECT_TRUE(landing.WaitForNotificationWithTimeout(absl::Seconds(30)));
            event.mutable_first_token()->set_token(0x80000000);
            writer.Write(event);
            WaitUntilCancelled(outer);
            given_up.Notify();
          } else {
            writer.Write(event);
          }
        });
        return grpc::Status::CANCELLED;
      });
  DecodeJob job = MakeJob(200, 10, 17);
  const std::vector<std::uint32_t> expected = Colocated(job);
  job.prefill = {relay.candidate()};
  const AtFailpoint land("decode.kLanded", [&] {
    landing.Notify();
    EXPECT_TRUE(given_up.WaitForNotificationWithTimeout(absl::Seconds(30)));
  });

  const auto observer = decode_.Start(std::move(job));

  EXPECT_EQ(observer->WaitForEnd(), absl::OkStatus());
  EXPECT_EQ(observer->tokens(), expected);
  ExpectAllFree();
}

// T52: the first tokens do not wait for the prefill worker's last word.
TEST_F(DecodeSessionsTest, TokensComeBeforeThePrefillCallHasEnded) {
  std::shared_ptr<RecordingObserver> observer;
  absl::Notification started;
  ScriptedPrefill late([&](grpc::ServerContext&, const v1::PrefillRequest& request, auto& writer) {
    const grpc::Status end =
        Relay(request, [&writer](const v1::PrefillEvent& event) { writer.Write(event); });
    started.WaitForNotification();
    EXPECT_TRUE(observer->WaitForTokens(10));  // all but the end has been said
    return end;
  });
  DecodeJob job = MakeJob(200, 10, 16);
  const std::vector<std::uint32_t> expected = Colocated(job);
  job.prefill = {late.candidate()};
  observer = decode_.Start(std::move(job));
  started.Notify();
  EXPECT_TRUE(observer->WaitForEnd().ok());
  EXPECT_EQ(observer->tokens(), expected);
  EXPECT_TRUE(observer->result().finished.split());
  ExpectAllFree();
}

// Once it is told to, stands still in a token, and the engine with it.
class HoldingObserver final : public GenerationObserver {
 public:
  void OnProgress(const GenerationResult&) override {}
  void OnPromptLogprobs(v1::Logprobs) override {}
  void OnToken(GeneratedToken) override {
    // At a pace at which it lasts until then, however busy the machine is.
    told.WaitForNotificationWithTimeout(absl::Milliseconds(5));
    if (told.HasBeenNotified() && !holds.HasBeenNotified()) {
      holds.Notify();
      EXPECT_TRUE(go_on.WaitForNotificationWithTimeout(absl::Seconds(60)));
    }
  }
  void OnChoiceEnd(std::uint32_t, v1::FinishReason) override {}
  void OnFinished(const GenerationResult&) override { ended.Notify(); }
  void OnError(absl::Status) override { ended.Notify(); }

  absl::Notification told;
  absl::Notification holds;
  absl::Notification go_on;
  absl::Notification ended;
};

TEST_F(DecodeSessionsTest, TheFirstTokenDoesNotWaitForAStepThatIsUnderWay) {
  for (const bool logprobs : {false, true}) {
    const auto holding = std::make_shared<HoldingObserver>();
    std::shared_ptr<RecordingObserver> observer;
    absl::Notification started;
    ScriptedPrefill prefill(
        [&](grpc::ServerContext&, const v1::PrefillRequest& request, auto& writer) {
          return Relay(request, [&](const v1::PrefillEvent& event) {
            if (!event.has_first_token()) {
              writer.Write(event);
              return;
            }
            started.WaitForNotification();
            holding->told.Notify();
            EXPECT_TRUE(holding->holds.WaitForNotificationWithTimeout(absl::Seconds(60)));
            writer.Write(event);
            EXPECT_TRUE(observer->WaitForTokens(1));
            EXPECT_EQ(observer->tokens().size(), 1u);
            EXPECT_FALSE(holding->go_on.HasBeenNotified());
            holding->go_on.Notify();
          });
        });
    DecodeJob job = MakeJob(200, 10, 17);
    if (logprobs) {
      job.sequence.set_logprobs(2);
    }
    const std::vector<std::uint32_t> expected = Colocated(job);
    job.prefill = {prefill.candidate()};
    const auto running = decode_.sessions.Start(MakeJob(20, 4000), holding);
    observer = decode_.Start(std::move(job));
    started.Notify();
    EXPECT_TRUE(observer->WaitForEnd().ok());
    running->Cancel();
    EXPECT_EQ(observer->tokens(), expected);
    EXPECT_EQ(observer->logprobs().size(), logprobs ? expected.size() : 0);
    EXPECT_TRUE(observer->result().finished.split());
    EXPECT_TRUE(holding->ended.WaitForNotificationWithTimeout(absl::Seconds(60)));
    ExpectAllFree();
  }
}

TEST_F(DecodeSessionsTest, CancellationAtAnyMomentFreesBothSides) {
  for (int delay_ms = 0; delay_ms < 30; delay_ms += 2) {
    DecodeJob job = MakeJob(1500, 200, 10);
    job.prefill = {prefill_.candidate()};
    ExpectFreeAfterCancelling(std::move(job), milliseconds(delay_ms));
  }
}

TEST_F(DecodeSessionsTest, ADeadlineInTheMiddleOfAHandoffFreesBothSides) {
  DecodeJob job = MakeJob(3000, 200, 11);
  job.prefill = {prefill_.candidate()};
  job.deadline = Clock::System().Now() + milliseconds(20);
  const auto observer = decode_.Start(std::move(job));
  EXPECT_EQ(observer->WaitForEnd().code(), absl::StatusCode::kDeadlineExceeded);
  ExpectAllFree();
}

}  // namespace
}  // namespace baton
