#include "router/fleet.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>

#include "tests/router/fake_worker.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/wait_until.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

class FleetTest : public testing::Test {
 protected:
  static const Checkpoint& Model() {
    static const TinyCheckpoint model;
    return *model;
  }

  FleetTest() : decode_(std::in_place, v1::ROLE_DECODE, IdentityOf(Model())) {}

  void StartFleet(std::vector<std::string> prefill = {}) {
    FleetOptions options{.decode = {decode_->address()},
                         .prefill = std::move(prefill),
                         .model_fingerprint = Model().fingerprint(),
                         .tokenizer_fingerprint = Model().tokenizer().fingerprint(),
                         .watch_again = milliseconds(20),
                         .dead_after = milliseconds(400)};
    fleet_ = *Fleet::Create(std::move(options), index_);
    fleet_->Start([this](bool can_serve) {
      can_serve_ = can_serve;
      ++changes_;
    });
  }

  bool AwaitServing(bool wanted) {
    return WaitUntil([this, wanted] { return can_serve_ == wanted && changes_ > 0; });
  }

  std::string ProblemOf(std::size_t number) { return fleet_->Status()[number].problem(); }
  bool AwaitProblem(std::size_t number, const std::string& part) {
    return WaitUntil([&] { return ProblemOf(number).find(part) != std::string::npos; });
  }

  static constexpr std::array<TokenId, kBlockTokens> kTokens{};

  std::optional<FakeWorker> decode_;
  TieredIndex index_{{.most_entries = 1000}};
  std::atomic<bool> can_serve_{false};
  std::atomic<int> changes_{0};
  std::unique_ptr<Fleet> fleet_;  // first to go: it calls back and polls
};

TEST_F(FleetTest, AWorkerThatAnswersMayGetRequests) {
  StartFleet();
  ASSERT_TRUE(AwaitServing(true));
  const std::shared_ptr<const FleetView> view = fleet_->View();

  ASSERT_EQ(view->decode.size(), 1u);
  EXPECT_EQ(view->decode[0]->address, decode_->address());
  EXPECT_EQ(view->decode[0]->instance.AsBytes(), decode_->description.instance_id());
  const v1::WorkerStatus status = fleet_->Status()[0];
  EXPECT_TRUE(status.alive());
  EXPECT_EQ(status.problem(), "");
  EXPECT_EQ(status.description().role(), v1::ROLE_DECODE);
}

// T34, F8, B49: death is known at once, and so is the return on the same port, as another instance.
TEST_F(FleetTest, ADeadWorkerIsNoticedAndFoundAgainOnTheSamePort) {
  StartFleet();
  ASSERT_TRUE(AwaitServing(true));
  const int port = decode_->port();
  const std::string before = decode_->description.instance_id();
  decode_.reset();
  ASSERT_TRUE(AwaitServing(false));
  EXPECT_TRUE(fleet_->View()->decode.empty());
  EXPECT_TRUE(AwaitProblem(0, "not reachable"));

  decode_.emplace(v1::ROLE_DECODE, IdentityOf(Model()), port);
  ASSERT_TRUE(AwaitServing(true));
  EXPECT_NE(fleet_->View()->decode[0]->instance.AsBytes(), before);
}

TEST_F(FleetTest, ASilentWorkerIsDeadAfterTheLimitAndBackWhenItSpeaks) {
  StartFleet();
  ASSERT_TRUE(AwaitServing(true));
  decode_->SetSilent(true);
  ASSERT_TRUE(AwaitServing(false));
  EXPECT_TRUE(AwaitProblem(0, "has not answered for 400 ms"));
  decode_->SetSilent(false);
  EXPECT_TRUE(AwaitServing(true));
}

TEST_F(FleetTest, ADrainingWorkerGetsNothing) {
  decode_->description.set_max_sequences(64);
  StartFleet();
  ASSERT_TRUE(AwaitServing(true));
  decode_->SetDraining(true);
  ASSERT_TRUE(AwaitServing(false));
  EXPECT_EQ(ProblemOf(0), "is draining");
  EXPECT_TRUE(fleet_->Status()[0].alive());
}

// B58: it takes nothing, and has no room for anything.
TEST_F(FleetTest, AWorkerWhoseEngineStandsStillGetsNothingUntilItGoesOn) {
  decode_->description.set_max_sequences(0);
  StartFleet();
  ASSERT_TRUE(AwaitServing(true));
  decode_->SetDraining(true);
  ASSERT_TRUE(AwaitServing(false));
  EXPECT_EQ(ProblemOf(0), "can run nothing: its engine stands still");
  decode_->SetDraining(false);
  EXPECT_TRUE(AwaitServing(true));
}

// T54: a clear reason, and no request.
TEST_F(FleetTest, AWorkerOfAnotherModelIsRefusedWithTheDifference) {
  EngineIdentity other = IdentityOf(Model());
  other.model_fingerprint[0] ^= 1;
  *decode_->description.mutable_identity() = ToProto(other);
  StartFleet();
  ASSERT_TRUE(AwaitProblem(0, "serves another model than the router: model"));

  EXPECT_FALSE(can_serve_);
  EXPECT_TRUE(fleet_->View()->decode.empty());
}

TEST_F(FleetTest, AWorkerOfTheWrongRoleIsRefused) {
  FakeWorker second(v1::ROLE_DECODE, IdentityOf(Model()));
  StartFleet({second.address()});
  ASSERT_TRUE(AwaitServing(true));
  EXPECT_TRUE(AwaitProblem(1, "listed as ROLE_PREFILL, but says it is ROLE_DECODE"));
  EXPECT_TRUE(fleet_->View()->prefill.empty());
}

TEST_F(FleetTest, AnInvalidDescriptionIsRefused) {
  decode_->description.set_instance_id("short");
  StartFleet();
  EXPECT_TRUE(AwaitProblem(0, "instance id"));
}

v1::WorkerReport Snapshot(std::uint64_t next_event, const std::vector<PrefixHash>& held) {
  v1::WorkerReport report;
  report.mutable_snapshot()->set_first(true);
  report.mutable_snapshot()->set_last(true);
  report.mutable_snapshot()->set_next_event(next_event);
  for (const PrefixHash& hash : held) {
    report.mutable_snapshot()->mutable_hashes()->append(hash.bytes.begin(), hash.bytes.end());
  }
  return report;
}

// T41: what the worker held is gone from the index before the process that follows it is asked.
TEST_F(FleetTest, AWorkersBlocksComeAndGoWithItsProcess) {
  const std::vector<PrefixHash> held = {NextHash({}, kTokens), NextHash({{1}}, kTokens)};
  decode_->Report(Snapshot(5, held));
  StartFleet();
  ASSERT_TRUE(WaitUntil([this] { return index_.stats().entries == 2; }));
  const int port = decode_->port();
  decode_.reset();
  EXPECT_TRUE(WaitUntil([this] { return index_.stats().entries == 0; }));

  decode_.emplace(v1::ROLE_DECODE, IdentityOf(Model()), port);
  ASSERT_TRUE(AwaitServing(true));
  EXPECT_EQ(index_.stats().entries, 0u);
  EXPECT_EQ(fleet_->resyncs(), 0u);
}

TEST_F(FleetTest, AGapInTheEventsAsksThatWorkerForASnapshot) {
  decode_->Report(Snapshot(5, {NextHash({}, kTokens)}));
  v1::WorkerReport late;
  late.mutable_events()->set_first_event(7);
  late.mutable_events()->add_events()->set_cleared(true);
  decode_->Report(late);
  StartFleet();

  const auto asked = [this] {
    const std::vector<v1::RouterNotice> notices = decode_->notices();
    return std::any_of(notices.begin(), notices.end(),
                       [](const v1::RouterNotice& notice) { return notice.has_resync(); });
  };
  ASSERT_TRUE(WaitUntil(asked));
  EXPECT_EQ(fleet_->resyncs(), 1u);
  EXPECT_EQ(index_.stats().entries, 0u) << "what is not certain is not used";
  EXPECT_TRUE(AwaitServing(true)) << "the worker itself is as good as before";
}

}  // namespace
}  // namespace baton
