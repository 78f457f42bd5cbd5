#include "router/route_chooser.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "proto/identity_conversion.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

class RouteChooserTest : public testing::Test {
 protected:
  void TearDown() override {
    for (const auto& [address, feed] : feeds_) {
      fleet_->CloseFeed(feed, absl::UnavailableError("over"));
    }
  }

  static EngineIdentity Identity() {
    EngineIdentity identity;
    identity.kv = {.layers = 2,
                   .kv_heads = 1,
                   .head_dim = 64,
                   .element_type = "bf16",
                   .layout_id = "test",
                   .layer_bytes = 64};
    identity.arithmetic = "test";
    identity.rope_base = 10'000;
    identity.rms_epsilon = 1e-5;
    return identity;
  }

  // A worker that has registered.
  void Add(v1::Role role, const std::string& address, const std::string& zone = "") {
    v1::WorkerReport report;
    v1::WorkerDescription& description = *report.mutable_description();
    description.set_role(role);
    description.set_address(address);
    description.set_zone(zone);
    description.set_instance_id(std::string(InstanceId::Make().AsBytes()));
    *description.mutable_identity() = ToProto(Identity());
    const FeedId feed = fleet_->OpenFeed(std::nullopt, [](const v1::RouterNotice&) {});
    feeds_[address] = feed;
    described_[address] = report;
    ASSERT_EQ(fleet_->OnReport(feed, report), absl::OkStatus());
  }
  void Report(const std::string& address, std::uint32_t decoding, std::uint64_t queued_tokens) {
    v1::EngineLoad& load = *described_.at(address).mutable_description()->mutable_load();
    load.set_decoding_sequences(decoding);
    load.set_queued_prefill_tokens(queued_tokens);
    ASSERT_EQ(fleet_->OnReport(feeds_.at(address), described_.at(address)), absl::OkStatus());
  }
  void Hold(const std::string& address,
            const std::vector<PrefixHash>& hashes,
            v1::KvTier tier = v1::KV_TIER_DEVICE) {
    v1::WorkerReport report;
    v1::KvSnapshot& snapshot = *report.mutable_snapshot();
    snapshot.set_tier(tier);
    snapshot.set_first(true);
    snapshot.set_last(true);
    for (const PrefixHash& hash : hashes) {
      snapshot.mutable_hashes()->append(hash.bytes.begin(), hash.bytes.end());
    }
    ASSERT_EQ(fleet_->OnReport(feeds_.at(address), report), absl::OkStatus());
  }

  absl::StatusOr<ChosenRoute> Choose(std::size_t tokens, const std::string& zone = "") {
    return chooser_.Choose({.prompt_tokens = tokens, .zone = zone});
  }
  // Where so many requests of this kind go, none of them at the same time.
  std::set<std::string> PlacesOf(std::size_t tokens, const std::string& zone = "") {
    std::set<std::string> places;
    for (int i = 0; i < 20; ++i) {
      const absl::StatusOr<ChosenRoute> route = Choose(tokens, zone);
      EXPECT_TRUE(route.ok()) << route.status();
      places.insert(route.ok() ? route->decode->address : "");
    }
    return places;
  }

  TieredIndex index_{{.most_entries = 10'000}};
  std::unique_ptr<Fleet> fleet_ = *Fleet::Create({}, index_);
  std::map<std::string, FeedId> feeds_;
  std::map<std::string, v1::WorkerReport> described_;
  RouteChooser chooser_{*fleet_, index_, {}};
};

// T71: residency comes before any score.
TEST_F(RouteChooserTest, ARequestOfAZoneStaysInIt) {
  Add(v1::ROLE_DECODE, "127.0.0.1:1", "eu");
  Add(v1::ROLE_DECODE, "127.0.0.1:2", "us");
  Add(v1::ROLE_PREFILL, "127.0.0.1:3", "us");

  EXPECT_EQ(PlacesOf(100).size(), 2u) << "without a zone any worker will do";
  EXPECT_EQ(PlacesOf(100, "eu"), std::set<std::string>{"127.0.0.1:1"});
  const absl::StatusOr<ChosenRoute> split = Choose(1000, "us");
  ASSERT_TRUE(split.ok());
  EXPECT_EQ(split->prefill.size(), 1u);
  const absl::StatusOr<ChosenRoute> whole = Choose(1000, "eu");
  ASSERT_TRUE(whole.ok());
  EXPECT_TRUE(whole->prefill.empty());
  EXPECT_EQ(whole->reason, v1::ROUTE_REASON_NO_PREFILL_WORKER);
  const absl::Status nowhere = Choose(100, "asia").status();
  EXPECT_EQ(nowhere.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(nowhere), "NO_WORKER_IN_ZONE");
}

TEST_F(RouteChooserTest, AWorkerThatWasUnreachableIsAvoidedWhereThereIsAnother) {
  Add(v1::ROLE_DECODE, "127.0.0.1:1");
  Add(v1::ROLE_DECODE, "127.0.0.1:2");
  const auto avoid = [this](std::size_t number) {
    fleet_->View()->decode[number]->counts->avoid_until =
        Clock::System().Now() + std::chrono::hours(1);
  };
  avoid(0);
  EXPECT_EQ(PlacesOf(100), std::set<std::string>{"127.0.0.1:2"});
  avoid(1);
  EXPECT_FALSE(PlacesOf(100).empty()) << "better than none";
}

TEST_F(RouteChooserTest, RequestsUnderWayCountAtOnce) {
  for (int i = 1; i <= 8; ++i) {
    Add(v1::ROLE_DECODE, absl::StrCat("127.0.0.1:", i));
  }
  std::vector<ChosenRoute> under_way;
  std::map<std::string, int> shares;
  for (int i = 0; i < 64; ++i) {
    under_way.push_back(*Choose(400));
    ++shares[under_way.back().decode->address];
  }
  for (const auto& [address, share] : shares) {
    EXPECT_LE(share, 16) << address;
  }
  EXPECT_EQ(fleet_->View()->decode[0]->counts->in_flight, shares["127.0.0.1:1"]);
  EXPECT_EQ(fleet_->View()->decode[0]->counts->prefill_tokens.now(), 400 * shares["127.0.0.1:1"]);
  under_way.clear();
  EXPECT_EQ(fleet_->View()->decode[0]->counts->in_flight, 0u);
  EXPECT_EQ(fleet_->View()->decode[0]->counts->prefill_tokens.now(), 0u);
}

// A worker's report is up to 200 ms old: what this router has there counts as of now.
TEST_F(RouteChooserTest, AnOldReportDoesNotCountARequestThatHasEnded) {
  Add(v1::ROLE_DECODE, "127.0.0.1:1");
  const auto load = [this] {
    const WorkerCounts& counts = *fleet_->View()->decode[0]->counts;
    return std::make_pair(counts.others_decoding + counts.decoding.now(),
                          counts.others_prefill_tokens + counts.prefill_tokens.now());
  };
  {
    const absl::StatusOr<ChosenRoute> route = Choose(100);
    Report("127.0.0.1:1", /*decoding=*/3, /*queued_tokens=*/250);
    EXPECT_EQ(load(), std::make_pair(std::uint64_t{3}, std::uint64_t{250}));
  }
  EXPECT_EQ(load(), std::make_pair(std::uint64_t{2}, std::uint64_t{150})) << "those of others";
  // One that was on its way when the request ended.
  Report("127.0.0.1:1", 3, 250);
  EXPECT_EQ(load(), std::make_pair(std::uint64_t{2}, std::uint64_t{150}));
  Report("127.0.0.1:1", 0, 0);
  EXPECT_EQ(load(), std::make_pair(std::uint64_t{0}, std::uint64_t{0}));
}

TEST_F(RouteChooserTest, ACachedPrefixDrawsARequest) {
  for (int i = 1; i <= 4; ++i) {
    Add(v1::ROLE_DECODE, absl::StrCat("127.0.0.1:", i));
  }
  Add(v1::ROLE_PREFILL, "127.0.0.1:9");
  const std::vector<TokenId> prompt(1024 + 5, TokenId(7));
  const std::vector<PrefixHash> hashes = HashBlocks({}, prompt);
  Hold("127.0.0.1:3", hashes);
  const absl::StatusOr<ChosenRoute> route =
      chooser_.Choose({.hashes = hashes, .prompt_tokens = prompt.size()});

  ASSERT_TRUE(route.ok());
  EXPECT_EQ(route->decode->address, "127.0.0.1:3");
  EXPECT_TRUE(route->prefill.empty());
  EXPECT_EQ(route->reason, v1::ROUTE_REASON_PREFIX_CACHED);
  EXPECT_EQ(route->cached_tokens, 1024u);
  EXPECT_EQ(chooser_.stats().query_tokens, prompt.size());
  EXPECT_EQ(chooser_.stats().hit_tokens, 1024u);
}

// What is loaded counts as hit, and where it came from is told.
TEST_F(RouteChooserTest, APrefixInASlowerTierDrawsARequestToo) {
  for (int i = 1; i <= 4; ++i) {
    Add(v1::ROLE_DECODE, absl::StrCat("127.0.0.1:", i));
  }
  const std::vector<TokenId> prompt(1024 + 5, TokenId(7));
  const std::vector<PrefixHash> hashes = HashBlocks({}, prompt);
  Hold("127.0.0.1:2", {hashes.begin(), hashes.begin() + 20}, v1::KV_TIER_HOST);
  Hold("127.0.0.1:3", hashes, v1::KV_TIER_DISK);
  const auto choose = [&] {
    return chooser_.Choose({.hashes = hashes, .prompt_tokens = prompt.size()});
  };
  absl::StatusOr<ChosenRoute> route = choose();
  ASSERT_TRUE(route.ok());
  EXPECT_EQ(route->decode->address, "127.0.0.1:3");
  EXPECT_EQ(route->reason, v1::ROUTE_REASON_PREFIX_CACHED);
  EXPECT_EQ(route->cached_tokens, 1024u);
  route = choose();  // the one before has ended
  EXPECT_EQ(chooser_.stats().hit_tokens, 2048u);
  EXPECT_EQ(chooser_.stats().hit_tokens_in, (PerTier<std::uint64_t>{0, 0, 2048}));

  Hold("127.0.0.1:3", {});
  route = choose();
  ASSERT_TRUE(route.ok());
  EXPECT_EQ(route->decode->address, "127.0.0.1:2");
  EXPECT_EQ(route->cached_tokens, 320u);
  EXPECT_EQ(chooser_.stats().hit_tokens_in, (PerTier<std::uint64_t>{0, 320, 2048}));
  Hold("127.0.0.1:1", hashes);
  route = choose();
  ASSERT_TRUE(route.ok());
  EXPECT_EQ(route->decode->address, "127.0.0.1:1");
  EXPECT_EQ(chooser_.stats().hit_tokens_in, (PerTier<std::uint64_t>{1024, 320, 2048}));
}

// F15: only between these two.
TEST_F(RouteChooserTest, APairWhoseHandoffsFailGetsNone) {
  Add(v1::ROLE_DECODE, "127.0.0.1:1");
  Add(v1::ROLE_PREFILL, "127.0.0.1:2");
  Add(v1::ROLE_PREFILL, "127.0.0.1:3");
  const auto pair = [this](std::size_t prefill) {
    const auto view = fleet_->View();
    return PairHealth::Pair{{view->decode[0]->slot, view->decode[0]->instance},
                            {view->prefill[prefill]->slot, view->prefill[prefill]->instance}};
  };
  chooser_.pairs().NoteFailure(pair(0));
  const absl::StatusOr<ChosenRoute> one = Choose(1000);
  ASSERT_TRUE(one.ok());
  ASSERT_EQ(one->prefill.size(), 1u);
  EXPECT_EQ(one->prefill[0]->address, "127.0.0.1:3");

  chooser_.pairs().NoteFailure(pair(1));
  const absl::StatusOr<ChosenRoute> none = Choose(1000);
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->prefill.empty());
  EXPECT_EQ(none->reason, v1::ROUTE_REASON_NO_PREFILL_WORKER);
}

}  // namespace
}  // namespace baton
