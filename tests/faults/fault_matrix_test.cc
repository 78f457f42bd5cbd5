// Every fault at every stage of a split request (DESIGN.md section 1, S1 to S9), on every
// transport: faults.md F1 to F7, F10, F11, F21, F23 (and T12, B34, B36: cancelled at S5, before the
// first piece, and at S6, before the acknowledgement). What must hold, whatever happens:
//
//   - within 2 s of the fault recovery has begun or the client has its status;
//   - tokens are those of the single engine, or the beginning of them and an error;
//   - blocks are free again in every survivor, and the next request is split and right.
//
// A failpoint holds the request at its stage; the fault comes; the failpoint lets go.

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tests/support/cluster.h"
#include "tests/support/failpoint_control.h"
#include "tests/support/patience.h"
#include "tests/support/reference_engine.h"
#include "tests/support/wait_until.h"

namespace baton {
namespace {

constexpr std::chrono::milliseconds kRecoveryBegins = std::chrono::seconds(2);
constexpr std::chrono::milliseconds kBlocksFree = std::chrono::seconds(1);
constexpr std::chrono::milliseconds kLease = std::chrono::seconds(5);
// Shorter than the silence after which a paused peer is given up: then the deadline is what ends
// it.
constexpr std::chrono::milliseconds kShortDeadline = std::chrono::milliseconds(700);
// Shorter than a handoff waits for pieces that do not come where computing them takes no time.
constexpr std::chrono::milliseconds kShorterDeadline = std::chrono::milliseconds(200);
constexpr int kLanes = 4;  // clusters at once: most of a case is waiting

struct Stage {
  const char* name;
  const char* failpoint;
  const char* pause;
  const char* also_fails = nullptr;  // a failpoint that fails until the fault has come
};

// S4 in the middle of the prompt's layers, S8 after some tokens.
constexpr Stage kStages[] = {
    {"S1", "router.admitted", "pause 1"},
    {"S2", "decode.kLeased", "pause 1"},
    {"S3", "prefill.kQueued", "pause 1"},
    {"S4", "prefill.kComputing", "pause 5"},
    {"S5", "prefill.kServing", "pause 1", "prefill.hold_pieces"},
    {"S6", "decode.kLanded", "pause 1"},
    {"S7", "decode.kAdopted", "pause 1"},
    {"S8", "decode.streaming", "pause 8"},
    {"S9", "decode.finishing", "pause 1"},
};

enum class Fault { kKill, kStop, kCancel, kDeadline };
enum class Victim { kRouter, kDecode, kPrefill, kNobody };

struct Case {
  Stage stage;
  Fault fault;
  Victim victim;
};

std::string NameOf(const Case& c) {
  const char* const faults[] = {"kill", "stop", "cancel", "deadline"};
  const char* const victims[] = {" router", " decode", " prefill", ""};
  return absl::StrCat(c.stage.name, " ", faults[static_cast<int>(c.fault)],
                      victims[static_cast<int>(c.victim)]);
}

std::deque<Case> AllCases() {
  std::deque<Case> cases;
  for (const Stage& stage : kStages) {
    for (const Fault fault : {Fault::kStop, Fault::kKill}) {
      for (const Victim victim : {Victim::kRouter, Victim::kDecode, Victim::kPrefill}) {
        cases.push_back({stage, fault, victim});
      }
    }
    cases.push_back({stage, Fault::kCancel, Victim::kNobody});
    cases.push_back({stage, Fault::kDeadline, Victim::kNobody});
  }
  return cases;
}

v1::CompleteRequest Request() {
  constexpr std::size_t kPromptTokens = 1200;
  constexpr std::uint32_t kNewTokens = 24;
  return GreedyRequest(TinyPrompt(1, kPromptTokens), kNewTokens, v1::PATH_UNSPECIFIED);
}

// One cluster, and what goes wrong in it.
class Lane {
 public:
  Lane(std::string transport, const Tokens& expected)
      : transport_(std::move(transport)), expected_(expected) {}

  // What was wrong; empty when nothing. After a failure the next case gets a new cluster.
  std::string Run(const Case& c) {
    problems_.clear();
    if (cluster_ == nullptr) {
      Start();
    }
    if (cluster_ != nullptr) {
      Play(c);
    }
    if (!problems_.empty() && cluster_ != nullptr) {
      AppendLogs();
      cluster_.reset();
    }
    return problems_;
  }
  // From the fault to the first sign of recovery.
  std::chrono::milliseconds recovery() const { return recovery_; }

 private:
  void Start() {
    auto cluster =
        Cluster::Start({.kv_pool_size = "32MiB",
                        .worker_flags = {"--prefix-cache", "off", "--kv-transport", transport_},
                        .failpoint_folder = failpoints_.folder()});
    if (cluster.ok()) {
      cluster_ = *std::move(cluster);
    } else {
      Check(false, absl::StrCat("no cluster: ", std::string(cluster.status().message())));
    }
  }

  void Check(bool holds, const std::string& what) {
    if (!holds) {
      absl::StrAppend(&problems_, "  ", what, "\n");
    }
  }

  void AppendLogs() {
    constexpr std::size_t kTailBytes = 3000;
    for (ServerProcess* server : {&cluster_->router(), &cluster_->decode(), &cluster_->prefill()}) {
      const std::string log = server->process().ErrorOutput();
      absl::StrAppend(&problems_, "  ", server->address(), " wrote:\n",
                      log.substr(log.size() - std::min(log.size(), kTailBytes)), "\n");
    }
  }

  ServerProcess& Of(Victim victim) {
    return victim == Victim::kRouter   ? cluster_->router()
           : victim == Victim::kDecode ? cluster_->decode()
                                       : cluster_->prefill();
  }

  void Play(const Case& c) {
    recovery_ = std::chrono::milliseconds(0);
    if (c.stage.also_fails != nullptr) {
      failpoints_.Arm(c.stage.also_fails, "fail 0");
    }
    failpoints_.Arm(c.stage.failpoint, c.stage.pause);
    const Duration deadline = c.stage.also_fails != nullptr ? kShorterDeadline : kShortDeadline;
    const auto stream = cluster_->client().Stream(
        Request(), c.fault == Fault::kDeadline ? deadline : Duration(kPatience));
    // A deadline may pass before a late stage is reached on a busy machine; then it has passed
    // at an earlier one.
    const bool reached = WaitUntil(
        [&] {
          return failpoints_.WasHit(c.stage.failpoint) ||
                 stream->WaitForEnd(Duration::zero()).has_value();
        },
        kPatience);
    Check(reached && (c.fault == Fault::kDeadline || failpoints_.WasHit(c.stage.failpoint)),
          "the stage was not reached");
    if (!problems_.empty()) {
      Disarm(c.stage);
      return;
    }
    Strike(c, *stream);
    Survive(c, *stream);
    CheckTokens(*stream);
    Recover(c);
  }

  void Strike(const Case& c, StreamedCompletion& stream) {
    struck_ = Clock::System().Now();
    prefilled_before_ = cluster_->decode().Load().prefilled_tokens();
    tokens_before_ = stream.tokens().size();
    switch (c.fault) {
      case Fault::kKill:
        Of(c.victim).process().Kill();
        break;
      case Fault::kStop:
        Of(c.victim).process().Signal(SIGSTOP);
        break;
      case Fault::kCancel:
        stream.Cancel();
        break;
      case Fault::kDeadline:
        stream.WaitForEnd();
        break;
    }
    Disarm(c.stage);
  }

  void Disarm(const Stage& stage) {
    failpoints_.Disarm(stage.failpoint);
    if (stage.also_fails != nullptr) {
      failpoints_.Disarm(stage.also_fails);
    }
  }

  // Until the request is over, one way or the other.
  void Survive(const Case& c, StreamedCompletion& stream) {
    const bool client_is_stuck = c.fault == Fault::kStop && c.victim == Victim::kRouter;
    if (!client_is_stuck) {
      const auto has_begun = [&] {
        return stream.WaitForEnd(Duration::zero()).has_value() ||
               stream.tokens().size() > tokens_before_ ||
               (c.victim == Victim::kPrefill &&
                cluster_->decode().Load().prefilled_tokens() > prefilled_before_);
      };
      Check(WaitUntil(has_begun, Promised(kRecoveryBegins)), "no sign of recovery in 2 s");
      recovery_ =
          std::chrono::duration_cast<std::chrono::milliseconds>(Clock::System().Now() - struck_);
    }
    if (c.fault == Fault::kStop) {
      // Past the lease: the others have nothing left to wait for.
      WaitUntil([&] { return Clock::System().Now() - struck_ > kLease; }, 2 * kLease);
      CheckIdle(c.victim, "survivors hold blocks past the lease");
      Of(c.victim).process().Signal(SIGCONT);
    }
    const std::optional<absl::Status> end = stream.WaitForEnd();
    Check(end.has_value(), "the request has no end");
    if (end.has_value()) {
      CheckEnd(c, *end);
    }
    if (c.fault != Fault::kStop) {
      CheckIdle(c.fault == Fault::kKill ? c.victim : Victim::kNobody, "survivors hold blocks");
    }
  }

  void CheckIdle(Victim except, const std::string& what) {
    const bool idle = WaitUntil(
        [&] {
          return (except == Victim::kDecode || cluster_->decode().IsIdle()) &&
                 (except == Victim::kPrefill || cluster_->prefill().IsIdle());
        },
        Promised(kBlocksFree));
    Check(idle, what);
  }

  // A dead prefill worker costs time, never the request.
  void CheckEnd(const Case& c, const absl::Status& end) {
    const std::string text = absl::StrCat("ended with ", end.ToString());
    switch (c.fault) {
      case Fault::kCancel:
        Check(absl::IsCancelled(end) || end.ok(), text);
        break;
      case Fault::kDeadline:
        Check(absl::IsDeadlineExceeded(end), text);
        break;
      case Fault::kKill:
        // F5, F7: there is nobody else to say that all is well, not even at S9, where all tokens
        // are out but for the word that they are all.
        Check(end.ok() == (c.victim == Victim::kPrefill), text);
        [[fallthrough]];
      case Fault::kStop:
        Check(end.ok() || (c.victim != Victim::kPrefill &&
                           (absl::IsUnavailable(end) || absl::IsAborted(end))),
              text);
        break;
    }
    finished_ = end.ok();
  }

  void CheckTokens(const StreamedCompletion& stream) {
    const Tokens tokens = stream.tokens();
    const bool prefix = tokens.size() <= expected_.size() &&
                        std::equal(tokens.begin(), tokens.end(), expected_.begin());
    Check(prefix, "wrong tokens");
    Check(!finished_ || tokens.size() == expected_.size(), "OK, but tokens are missing");
  }

  void Recover(const Case& c) {
    if (c.fault == Fault::kKill) {
      const absl::Status started = Of(c.victim).Start();
      Check(started.ok(), absl::StrCat("does not start again: ", started.ToString()));
    }
    Check(cluster_->WaitForUsableWorkers(2), "the router does not find all workers");
    Check(cluster_->WaitUntilIdle(Promised(kBlocksFree)), "blocks are held");
    const auto next = cluster_->client().Complete(Request());
    Check(next.ok(), absl::StrCat("the next request: ", next.status().ToString()));
    if (next.ok()) {
      Check(TokensOf(*next) == expected_, "the next request has wrong tokens");
      Check(next->timeline().path() == v1::PATH_DISAGGREGATED, "the next request is not split");
      Check(next->timeline().transport() == transport_,
            absl::StrCat("the next request goes over ", next->timeline().transport()));
    }
    Check(cluster_->WaitUntilIdle(Promised(kBlocksFree)), "the next request leaves blocks");
  }

  const std::string transport_;
  const Tokens& expected_;  // of the test, which outlives its lanes
  FailpointControl failpoints_;
  std::unique_ptr<Cluster> cluster_;
  std::string problems_;
  TimePoint struck_;
  std::uint64_t prefilled_before_ = 0;
  std::size_t tokens_before_ = 0;
  bool finished_ = false;
  std::chrono::milliseconds recovery_{0};
};

class FaultMatrixTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(,
                         FaultMatrixTest,
                         testing::Values("tcp", "mapped", "grpc"),
                         [](const auto& transport) { return transport.param; });

TEST_P(FaultMatrixTest, EveryFaultAtEveryStage) {
  auto engine = ReferenceEngine::Start(TinyModel(), 32 << 20);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const absl::StatusOr<Tokens> expected = (*engine)->Generate(Request());
  ASSERT_TRUE(expected.ok()) << expected.status();

  absl::Mutex mutex;
  std::deque<Case> cases = AllCases();
  std::vector<std::jthread> lanes;
  for (int i = 0; i < kLanes; ++i) {
    lanes.emplace_back([&] {
      Lane lane(GetParam(), *expected);
      while (true) {
        std::optional<Case> next;
        {
          absl::MutexLock lock(&mutex);
          if (cases.empty()) {
            return;
          }
          next = cases.front();
          cases.pop_front();
        }
        const std::string problems = lane.Run(*next);
        absl::MutexLock lock(&mutex);
        std::printf("%s %s: %s, recovery after %lld ms\n", GetParam().c_str(),
                    NameOf(*next).c_str(), problems.empty() ? "ok" : "FAILED",
                    static_cast<long long>(lane.recovery().count()));
        std::fflush(stdout);
        EXPECT_EQ(problems, "") << GetParam() << " " << NameOf(*next);
      }
    });
  }
  lanes.clear();  // joins
}

}  // namespace
}  // namespace baton
