#include "router/choose_route.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "google/rpc/error_details.pb.h"

namespace baton {
namespace {

WorkerView Worker(std::size_t number, std::uint64_t in_flight = 0, std::uint8_t layout = 1) {
  WorkerView worker{.number = number, .in_flight = in_flight};
  worker.layout[0] = layout;
  return worker;
}

std::string ReasonOf(const absl::Status& status) {
  google::rpc::ErrorInfo info;
  const auto payload = status.GetPayload("type.googleapis.com/google.rpc.ErrorInfo");
  return payload.has_value() && info.ParseFromString(std::string(*payload)) ? info.reason() : "";
}

constexpr v1::Path kAuto = v1::PATH_UNSPECIFIED;
constexpr v1::Path kColocated = v1::PATH_COLOCATED;
constexpr v1::Path kSplit = v1::PATH_DISAGGREGATED;

struct Row {
  std::string name;
  std::size_t prompt_tokens;
  v1::Path path;
  FleetView fleet;
  // Expected: a reason, or an error's reason.
  v1::RouteReason reason;
  bool split;
  std::string error = "";
};

class RoutePolicy : public testing::TestWithParam<Row> {};

TEST_P(RoutePolicy, Chooses) {
  const Row& row = GetParam();
  const auto decision =
      ChooseRoute({.prompt_tokens = row.prompt_tokens, .path = row.path}, row.fleet, {});

  if (!row.error.empty()) {
    EXPECT_EQ(decision.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ReasonOf(decision.status()), row.error);
    return;
  }
  ASSERT_TRUE(decision.ok()) << decision.status();
  EXPECT_EQ(decision->reason, row.reason);
  EXPECT_EQ(!decision->prefill.empty(), row.split);
}

const FleetView kBoth = {.decode = {Worker(0)}, .prefill = {Worker(0)}};
const FleetView kDecodeOnly = {.decode = {Worker(0)}};
const FleetView kPrefillOnly = {.prefill = {Worker(0)}};
const FleetView kMismatch = {.decode = {Worker(0)}, .prefill = {Worker(0, 0, 2)}};

INSTANTIATE_TEST_SUITE_P(
    Table,
    RoutePolicy,
    testing::ValuesIn(std::vector<Row>{
        // T25, T26: the limit itself is split.
        {"1", 1, kAuto, kBoth, v1::ROUTE_REASON_SHORT_PROMPT, false},
        {"511", 511, kAuto, kBoth, v1::ROUTE_REASON_SHORT_PROMPT, false},
        {"512", 512, kAuto, kBoth, v1::ROUTE_REASON_PREFILL_QUICKER, true},
        {"513", 513, kAuto, kBoth, v1::ROUTE_REASON_PREFILL_QUICKER, true},
        // T36.
        {"long_without_prefill", 512, kAuto, kDecodeOnly, v1::ROUTE_REASON_NO_PREFILL_WORKER,
         false},
        {"short_without_prefill", 511, kAuto, kDecodeOnly, v1::ROUTE_REASON_SHORT_PROMPT, false},
        {"long_with_unfit_prefill", 900, kAuto, kMismatch, v1::ROUTE_REASON_NO_PREFILL_WORKER,
         false},
        {"forced_colocated", 900, kColocated, kBoth, v1::ROUTE_REASON_REQUESTED, false},
        {"forced_split", 1, kSplit, kBoth, v1::ROUTE_REASON_REQUESTED, true},
        {"forced_split_without_prefill", 900, kSplit, kDecodeOnly, {}, false, "NO_PREFILL_WORKER"},
        {"forced_split_with_unfit_prefill", 900, kSplit, kMismatch, {}, false, "NO_PREFILL_WORKER"},
        {"no_decode", 1, kAuto, kPrefillOnly, {}, false, "NO_DECODE_WORKER"},
        {"no_decode_forced", 900, kSplit, kPrefillOnly, {}, false, "NO_DECODE_WORKER"},
        {"nobody", 900, kColocated, {}, {}, false, "NO_DECODE_WORKER"},
    }),
    [](const testing::TestParamInfo<Row>& row) { return row.param.name; });

TEST(RoutePolicyLimit, IsAnOption) {
  const auto decision = ChooseRoute({.prompt_tokens = 10}, kBoth, {.colocate_below_tokens = 10});
  EXPECT_EQ(decision->reason, v1::ROUTE_REASON_PREFILL_QUICKER);
}

std::vector<std::size_t> Numbers(const std::vector<WorkerView>& workers) {
  std::vector<std::size_t> numbers;
  for (const WorkerView& worker : workers) {
    numbers.push_back(worker.number);
  }
  return numbers;
}

TEST(RoutePolicyLoad, TheLeastLoadedGoesFirst) {
  const FleetView fleet = {.decode = {Worker(0, 3), Worker(1, 1), Worker(2, 2)},
                           .prefill = {Worker(0, 5), Worker(1, 0), Worker(2, 0, 2), Worker(3, 2)}};
  const auto decision = ChooseRoute({.prompt_tokens = 600}, fleet, {});

  EXPECT_EQ(decision->decode.number, 1u);
  EXPECT_THAT(Numbers(decision->prefill), testing::ElementsAre(1, 3, 0))
      << "the unfit one is not asked";
}

TEST(RoutePolicyLoad, ASplitPromptTakesADecodeWorkerThatHasAPrefillWorker) {
  const FleetView fleet = {.decode = {Worker(0, 0, 1), Worker(1, 7, 2)},
                           .prefill = {Worker(0, 9, 2)}};

  EXPECT_EQ(ChooseRoute({.prompt_tokens = 600}, fleet, {})->decode.number, 1u);
  EXPECT_EQ(ChooseRoute({.prompt_tokens = 5}, fleet, {})->decode.number, 0u);
}

// T61: with equal load the requests are shared evenly, also when they come one after another.
TEST(RoutePolicyLoad, TiesAreSharedEvenly) {
  FleetView fleet = {.decode = {Worker(0), Worker(1), Worker(2)}};
  for (int request = 0; request < 9; ++request) {
    const auto decision = ChooseRoute({.prompt_tokens = 5}, fleet, {});
    ++fleet.decode[decision->decode.number].dispatched;
  }
  for (const WorkerView& worker : fleet.decode) {
    EXPECT_EQ(worker.dispatched, 3u);
  }
}

}  // namespace
}  // namespace baton
