// What a router makes of the blocks that its workers say they hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "tests/router/two_fake_workers.h"

namespace baton {
namespace {

// What a worker holds counts, but not where the whole prompt is computed for its log probabilities.
TEST_F(RouterTest, ACachedPromptIsColocatedUnlessItsLogprobsAreWanted) {
  const PrefixHash root = RootHash({.model_fingerprint = Model().fingerprint(),
                                    .tokenizer_fingerprint = Model().tokenizer().fingerprint()});
  v1::WorkerReport report;
  report.mutable_snapshot()->set_first(true);
  report.mutable_snapshot()->set_last(true);
  for (const PrefixHash& hash : HashBlocks(root, std::vector<TokenId>(600, TokenId(70)))) {
    report.mutable_snapshot()->mutable_hashes()->append(hash.bytes.begin(), hash.bytes.end());
  }
  decode_->Report(report);
  StartAndAwait();
  ASSERT_TRUE(WaitUntil([this] { return Status().prefix_index().entries() == 600 / 16; }));

  EXPECT_EQ(Complete(Prompt(600)).response.timeline().reason(), v1::ROUTE_REASON_PREFIX_CACHED);
  EXPECT_TRUE(decode_->requests().at(0).prefill().empty());
  v1::CompleteRequest logprobs = Prompt(600);
  logprobs.set_logprobs(0);
  logprobs.set_echo(true);
  Complete(logprobs);
  EXPECT_EQ(decode_->requests().at(1).prefill_size(), 1);
}

std::vector<PrefixHash> BlocksOf(const Checkpoint& model, std::size_t tokens) {
  const PrefixHash root = RootHash({.model_fingerprint = model.fingerprint(),
                                    .tokenizer_fingerprint = model.tokenizer().fingerprint()});
  return HashBlocks(root, std::vector<TokenId>(tokens, TokenId(70)));
}

std::string BytesOf(const std::vector<PrefixHash>& hashes) {
  std::string bytes;
  for (const PrefixHash& hash : hashes) {
    bytes.append(hash.bytes.begin(), hash.bytes.end());
  }
  return bytes;
}

v1::WorkerReport Holds(v1::KvTier tier, const std::string& hashes) {
  v1::WorkerReport report;
  report.mutable_snapshot()->set_first(true);
  report.mutable_snapshot()->set_last(true);
  report.mutable_snapshot()->set_tier(tier);
  report.mutable_snapshot()->set_hashes(hashes);
  return report;
}

v1::WorkerReport Removes(v1::KvTier tier, const std::string& hashes) {
  v1::WorkerReport report;
  v1::KvEvent& event = *report.mutable_events()->add_events();
  event.set_tier(tier);
  event.set_removed(hashes);
  return report;
}

// T66: the same prefix on the device of A and the disk of B: A. Evicted there: B before cold C.
// Gone from B too: anywhere.
TEST_F(RouterTest, APrefixOnADeviceComesBeforeOneOnDiskBeforeNone) {
  FakeWorker b(v1::ROLE_DECODE, IdentityOf(Model()));
  FakeWorker c(v1::ROLE_DECODE, IdentityOf(Model()));
  b.script = c.script = decode_->script;
  more_decode_ = {b.address(), c.address()};
  const std::string blocks = BytesOf(BlocksOf(Model(), 600));
  decode_->Report(Holds(v1::KV_TIER_DEVICE, blocks));
  b.Report(Holds(v1::KV_TIER_DISK, blocks));
  StartRouter();
  constexpr std::uint64_t kBlocks = 600 / 16;
  const auto entries = [this](v1::KvTier tier) {
    const v1::PrefixIndexStatus index = Status().prefix_index();
    return index.tiers_size() > tier ? index.tiers(tier).entries() : 0;
  };
  ASSERT_TRUE(WaitUntil([&] {
    const v1::StatusResponse status = Status();
    return std::all_of(status.workers().begin(), status.workers().end(),
                       [](const v1::WorkerStatus& worker) { return worker.problem().empty(); }) &&
           entries(v1::KV_TIER_DEVICE) == kBlocks && entries(v1::KV_TIER_DISK) == kBlocks;
  }));
  EXPECT_EQ(Status().prefix_index().entries(), 2 * kBlocks);
  for (int i = 0; i < 20; ++i) {
    const Answer answer = Complete(Prompt(600));
    ASSERT_EQ(answer.response.timeline().decode_worker(), decode_->address()) << answer.status;
    ASSERT_EQ(answer.response.timeline().reason(), v1::ROUTE_REASON_PREFIX_CACHED);
  }

  decode_->Report(Removes(v1::KV_TIER_DEVICE, blocks));
  ASSERT_TRUE(WaitUntil([&] { return entries(v1::KV_TIER_DEVICE) == 0; }));
  for (int i = 0; i < 20; ++i) {
    const Answer answer = Complete(Prompt(600));
    ASSERT_EQ(answer.response.timeline().decode_worker(), b.address()) << answer.status;
    ASSERT_EQ(answer.response.timeline().reason(), v1::ROUTE_REASON_PREFIX_CACHED);
  }
  const v1::PrefixIndexStatus index = Status().prefix_index();
  EXPECT_EQ(index.tiers(v1::KV_TIER_DEVICE).hit_tokens(), 20 * 16 * kBlocks);
  EXPECT_EQ(index.tiers(v1::KV_TIER_HOST).hit_tokens(), 0u);
  EXPECT_EQ(index.tiers(v1::KV_TIER_DISK).hit_tokens(), 20 * 16 * kBlocks);
  EXPECT_EQ(index.hit_tokens(), 40 * 16 * kBlocks);

  b.Report(Removes(v1::KV_TIER_DISK, blocks));
  ASSERT_TRUE(WaitUntil([&] { return Status().prefix_index().entries() == 0; }));
  std::set<std::string> places;
  for (int i = 0; i < 20; ++i) {
    const Answer answer = Complete(Prompt(600));
    EXPECT_NE(answer.response.timeline().reason(), v1::ROUTE_REASON_PREFIX_CACHED);
    places.insert(answer.response.timeline().decode_worker());
  }
  EXPECT_TRUE(places.contains(c.address())) << "it has had the fewest";
}

// T66: what the worker itself has seen of its loads counts.
TEST_F(RouterTest, APrefixThatTheWorkerLoadsSlowlyCountsAsNothing) {
  v1::WorkerRates::TierRate& rate = *decode_->description.mutable_rates()->add_tiers();
  rate.set_tier(v1::KV_TIER_HOST);
  rate.set_bytes_per_second(1);
  decode_->Report(Holds(v1::KV_TIER_HOST, BytesOf(BlocksOf(Model(), 600))));
  StartAndAwait();
  ASSERT_TRUE(WaitUntil([this] { return Status().prefix_index().entries() == 600 / 16; }));
  // The router fits costs about every second.
  EXPECT_TRUE(WaitUntil([this] {
    const Answer answer = Complete(Prompt(600));
    return answer.status.ok() &&
           answer.response.timeline().reason() != v1::ROUTE_REASON_PREFIX_CACHED;
  }));
}

}  // namespace
}  // namespace baton
