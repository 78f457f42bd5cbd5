#include "client/status_output.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

v1::StatusResponse RouterStatus(int workers) {
  v1::StatusResponse status;
  status.set_role(v1::ROLE_ROUTER);
  status.set_version("9");
  status.set_model("tiny");
  status.set_ready(true);
  *status.mutable_uptime() = ToProtoDuration(std::chrono::minutes(125));
  status.set_policy("prefix");
  status.set_colocate_below_tokens(512);
  for (int i = 0; i < workers; ++i) {
    v1::WorkerStatus& worker = *status.add_workers();
    worker.set_address(absl::StrCat("10.0.0.", i, ":7000"));
    worker.set_alive(true);
    v1::WorkerDescription& description = *worker.mutable_description();
    description.set_role(i % 2 == 0 ? v1::ROLE_DECODE : v1::ROLE_PREFILL);
    description.set_zone("eu");
    description.set_max_sequences(64);
    description.set_transport("mapped");
    description.mutable_load()->set_running_sequences(3);
    description.mutable_load()->set_total_blocks(5825);
    description.mutable_load()->set_free_blocks(5000);
    description.mutable_load()->set_prefix_query_tokens(1000);
    description.mutable_load()->set_prefix_hit_tokens(360);
    v1::KvPeer& peer = *description.add_kv_peers();
    peer.set_transport("mapped");
    peer.set_carrier("tcp");
    peer.set_reason("both on this host");
  }
  v1::PrefixIndexStatus& index = *status.mutable_prefix_index();
  index.set_entries(1);
  index.set_blocks(1200);
  index.set_bytes(3 << 20);
  index.set_query_tokens(200);
  index.set_hit_tokens(50);
  v1::AdmissionStatus& admission = *status.mutable_admission();
  admission.set_running(6);
  admission.set_queued(2);
  admission.set_queue_size(256);
  admission.set_refused(7);
  (*status.mutable_requests())["colocated/SHORT_PROMPT"] = 3;
  (*status.mutable_requests())["NOT_FOUND"] = 1;
  return status;
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(StatusOutput, ShowsARouterAndItsFleet) {
  const std::string text = DescribeStatus(RouterStatus(3));
  for (const char* part :
       {"baton router 9, model tiny, ready, up 2h 5m, policy prefix\n",
        "workers: 2 decode, 1 prefill\n", "10.0.0.1:7000  eu    ok     3/64", "5000/5825", "36%",
        "  mapped     tcp          2            both on this host\n",
        "not measured yet; configured: 512, which is in use\n",
        "1 entry of 1200 blocks in 3.0 MiB; hits 25% of 200 tokens; 0 resyncs, 0 left out\n",
        "6 sequences running, 2 of at most 256 waiting; 7 refused, 0 tried again", "requests: 4\n",
        "colocated/SHORT_PROMPT  3  75%\n", "NOT_FOUND               1  25%\n"}) {
    EXPECT_TRUE(Has(text, part)) << part << "\n" << text;
  }
}

TEST(StatusOutput, TiersAreShownWhereBlocksAreElsewhereThanOnDevices) {
  v1::StatusResponse status = RouterStatus(1);
  for (const v1::KvTier tier : {v1::KV_TIER_DEVICE, v1::KV_TIER_HOST, v1::KV_TIER_DISK}) {
    status.mutable_prefix_index()->add_tiers()->set_tier(tier);
  }
  status.mutable_prefix_index()->mutable_tiers(0)->set_entries(1);
  status.mutable_prefix_index()->mutable_tiers(0)->set_hit_tokens(50);
  EXPECT_FALSE(Has(DescribeStatus(status), "tiers"));
  status.mutable_prefix_index()->mutable_tiers(2)->set_entries(40);
  status.mutable_prefix_index()->mutable_tiers(2)->set_hit_tokens(20);
  EXPECT_TRUE(Has(DescribeStatus(status),
                  "device 1 entry, hits 25%; host 0 entries, hits 0%; disk 40 entries, hits 10%\n"))
      << DescribeStatus(status);
}

TEST(StatusOutput, TheCrossoverStandsBesideTheConfiguredLimit) {
  v1::StatusResponse status = RouterStatus(1);
  v1::Crossover& crossover = *status.mutable_crossover();
  crossover.set_why_unknown("no transfer was measured");
  EXPECT_TRUE(
      Has(DescribeStatus(status), "not measured yet: no transfer was measured; configured"));
  crossover.set_known(true);
  EXPECT_TRUE(Has(DescribeStatus(status), "pays at no length; configured: 512, which is in use"));
  crossover.set_pays(true);
  crossover.set_prompt_tokens(384);
  crossover.set_in_use(true);
  EXPECT_TRUE(Has(DescribeStatus(status),
                  "pays from 384 uncached tokens on; configured: 512, the measured one is in use"));
}

TEST(StatusOutput, ALargeFleetStaysOnOneScreenWithWhatIsWrongInSight) {
  v1::StatusResponse status = RouterStatus(1000);
  status.mutable_workers(900)->set_problem("another model: sha256 differs");
  status.mutable_workers(950)->set_alive(false);
  const std::string text = DescribeStatus(status);
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 45) << text;
  EXPECT_TRUE(Has(text, "workers: 500 decode, 500 prefill; 2 of them without requests\n")) << text;
  EXPECT_TRUE(Has(text, "another model: sha256 differs")) << text;
  EXPECT_TRUE(Has(text, "dead")) << text;
  EXPECT_TRUE(Has(text, "and 976 more; --json shows all\n")) << text;
}

TEST(StatusOutput, AWorkerShowsItself) {
  v1::StatusResponse status = RouterStatus(1);
  status.set_role(v1::ROLE_DECODE);
  status.set_policy("");
  const std::string text = DescribeStatus(status);
  EXPECT_TRUE(Has(text, "baton decode 9, model tiny, ready, up 2h 5m\n")) << text;
  EXPECT_TRUE(Has(text, "workers: 1 decode\n")) << text;
  EXPECT_FALSE(Has(text, "disaggregation")) << text;
}

TEST(StatusOutput, NothingYetIsSaid) {
  v1::StatusResponse status;
  status.set_role(v1::ROLE_ROUTER);
  const std::string text = DescribeStatus(status);
  EXPECT_TRUE(Has(text, "NOT ready")) << text;
  EXPECT_TRUE(Has(text, "workers: none\n")) << text;
  EXPECT_TRUE(Has(text, "requests: none yet\n")) << text;
}

}  // namespace
}  // namespace baton
