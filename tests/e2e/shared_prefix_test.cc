// Requests go where their prefix is cached, on a fleet of workers that have registered: the real
// model, two prefill and two decode workers, prompts that share 2,048 tokens.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>
#include <vector>

#include "proto/status_conversion.h"
#include "tests/support/cluster.h"
#include "tests/support/prompts.h"
#include "tests/support/test_models.h"
#include "tests/support/wait_until.h"

namespace baton {
namespace {

constexpr std::size_t kSharedTokens = 2048;
constexpr std::size_t kOwnTokens = 16;
constexpr std::uint32_t kFirstToken = 1000;
constexpr std::uint32_t kEndToken = 20'000;
constexpr std::chrono::minutes kLongPatience{2};

class SharedPrefixTest : public testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<TestModel> model = ExampleModel();
    ASSERT_TRUE(model.ok()) << model.status();
    auto cluster = Cluster::Start({.model = *model,
                                   .kv_pool_size = "512MiB",
                                   .prefill_workers = 2,
                                   .decode_workers = 2,
                                   .registered = true});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }

  void TearDown() override {
    if (HasFailure() && cluster_ != nullptr) {
      ADD_FAILURE() << "the router wrote:\n" << cluster_->router().process().ErrorOutput();
    }
  }

  static v1::CompleteRequest Request(std::uint64_t family, std::uint64_t number) {
    Tokens prompt = RandomTokens(family, kSharedTokens, kFirstToken, kEndToken);
    const Tokens own = RandomTokens(1'000'000 + number, kOwnTokens, kFirstToken, kEndToken);
    prompt.insert(prompt.end(), own.begin(), own.end());
    return GreedyRequest(prompt, 4, v1::PATH_UNSPECIFIED);
  }

  v1::CompleteResponse Complete(const v1::CompleteRequest& request) {
    const auto response = cluster_->client().Complete(request, kLongPatience);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? *response : v1::CompleteResponse();
  }

  static double FirstTokenSeconds(const v1::CompleteResponse& response) {
    return std::chrono::duration<double>(
               FromProtoDuration(response.timeline().time_to_first_token()))
        .count();
  }
  // The router has been told of all that these requests have left in the caches: each prefix in
  // that of a decode and of a prefill worker.
  bool AwaitIndexed(std::uint64_t tokens) {
    return WaitUntil([&] {
      const auto status = cluster_->router().Status();
      return status.ok() && status->prefix_index().entries() >= 2 * tokens / 16;
    });
  }

  std::unique_ptr<Cluster> cluster_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

TEST_F(SharedPrefixTest, LaterRequestsGoWhereItIsAndAnswerTenTimesSooner) {
  std::vector<double> missed;
  std::vector<double> hit;
  for (std::uint64_t family = 1; family <= 3; ++family) {
    SCOPED_TRACE(family);
    const v1::CompleteResponse first = Complete(Request(family, 0));
    EXPECT_EQ(first.usage().cached_prompt_tokens(), 0u);
    EXPECT_EQ(first.timeline().path(), v1::PATH_DISAGGREGATED);
    missed.push_back(FirstTokenSeconds(first));
    ASSERT_TRUE(AwaitIndexed(family * kSharedTokens));
    for (std::uint64_t number = 1; number <= 3; ++number) {
      const v1::CompleteResponse later = Complete(Request(family, number));
      EXPECT_EQ(later.timeline().decode_worker(), first.timeline().decode_worker());
      EXPECT_EQ(later.timeline().path(), v1::PATH_COLOCATED);
      EXPECT_EQ(later.timeline().reason(), v1::ROUTE_REASON_PREFIX_CACHED);
      EXPECT_EQ(later.usage().cached_prompt_tokens(), kSharedTokens);
      hit.push_back(FirstTokenSeconds(later));
    }
  }
  std::printf("first token: %.1f ms without the prefix, %.1f ms with it, ratio %.1f\n",
              1e3 * Median(missed), 1e3 * Median(hit), Median(missed) / Median(hit));
  EXPECT_GE(Median(missed), 10 * Median(hit));
}

// F6, T68: the router is killed under load and started again; it knows what the workers have told
// it by then, and nothing else. Under load a prefix may have come to both decode workers.
TEST_F(SharedPrefixTest, ARestartedRouterFindsThePrefixesAgain) {
  constexpr std::uint64_t kFamilies = 2;
  constexpr std::uint64_t kClients = 2;
  constexpr std::uint64_t kRequests = 4;  // different ones of a client
  std::map<std::pair<std::uint64_t, std::uint64_t>, Tokens> expected;
  for (std::uint64_t family = 1; family <= kFamilies; ++family) {
    for (std::uint64_t number = 0; number < kRequests; ++number) {
      const v1::CompleteResponse response = Complete(Request(family, number));
      expected[{family, number}] = TokensOf(response);
      ASSERT_TRUE(AwaitIndexed(family * kSharedTokens));
    }
  }

  std::atomic<bool> over{false};
  std::atomic<int> right{0};
  std::vector<std::jthread> clients;
  for (std::uint64_t client = 0; client < kClients; ++client) {
    clients.emplace_back([&, family = 1 + client % kFamilies] {
      for (std::uint64_t i = 0; !over; ++i) {
        const std::uint64_t number = i % kRequests;
        const auto response = cluster_->client().Complete(Request(family, number), kLongPatience);
        if (response.ok()) {
          EXPECT_EQ(TokensOf(*response), expected.at({family, number}));
          ++right;
        } else {
          EXPECT_EQ(response.status().code(), absl::StatusCode::kUnavailable) << response.status();
        }
      }
    });
  }
  EXPECT_TRUE(WaitUntil([&] { return right >= 4; }, kLongPatience));
  cluster_->router().process().Kill();
  ASSERT_EQ(cluster_->router().Start(), absl::OkStatus());
  const bool found = cluster_->WaitForUsableWorkers(4) && AwaitIndexed(kFamilies * kSharedTokens);
  const int before = right;
  EXPECT_TRUE(WaitUntil([&] { return right >= before + 4; }, kLongPatience));
  over = true;
  clients.clear();
  ASSERT_TRUE(found);

  for (std::uint64_t family = 1; family <= kFamilies; ++family) {
    const v1::CompleteResponse response = Complete(Request(family, 0));
    EXPECT_EQ(response.usage().cached_prompt_tokens() / 16, (kSharedTokens + kOwnTokens - 1) / 16);
    EXPECT_EQ(TokensOf(response), expected.at({family, 0}));
  }
}

}  // namespace
}  // namespace baton
