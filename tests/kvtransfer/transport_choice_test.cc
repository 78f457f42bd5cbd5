#include "kvtransfer/transport_choice.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

using Kind = TransportKind;

absl::Status Not(const char* why) {
  return absl::FailedPreconditionError(why);
}

// The table of DESIGN.md.
TEST(TransportChoice, TakesTheBestThatIsUsableAndSaysWhy) {
  struct Case {
    std::optional<Kind> forced;
    std::vector<TransportCandidate> candidates;
    std::vector<Kind> kinds;
    std::string reason;
  };
  const std::vector<Case> cases = {
      {{}, {{Kind::kRdma, {}}, {Kind::kTcp, {}}}, {Kind::kRdma, Kind::kTcp}, "the best there is"},
      {{},
       {{Kind::kRdma, Not("no device")}, {Kind::kMapped, {}}, {Kind::kTcp, {}}},
       {Kind::kMapped, Kind::kTcp},
       "no rdma: no device"},
      {{},
       {{Kind::kRdma, Not("no device")}, {Kind::kMapped, Not("another host")}, {Kind::kTcp, {}}},
       {Kind::kTcp},
       "no rdma: no device; no mapped: another host"},
      {Kind::kTcp,
       {{Kind::kMapped, {}}, {Kind::kTcp, {}}},
       {Kind::kTcp},
       "asked for by --kv-transport"},
      {Kind::kMapped,
       {{Kind::kMapped, {}}, {Kind::kTcp, {}}},
       {Kind::kMapped},
       "asked for by --kv-transport"},
      {{}, {{Kind::kGrpc, {}}}, {Kind::kGrpc}, "the best there is"},
  };
  for (const Case& one : cases) {
    const absl::StatusOr<TransportChoice> choice =
        ChooseTransport({one.forced, {}}, one.candidates);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->kinds, one.kinds) << one.reason;
    EXPECT_EQ(choice->reason, one.reason);
  }
}

TEST(TransportChoice, RefusesWhatIsForcedAndAbsent) {
  const absl::Status mapped =
      ChooseTransport({Kind::kMapped, {}}, {{Kind::kMapped, Not("another host")}, {Kind::kTcp, {}}})
          .status();
  EXPECT_EQ(mapped.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(mapped.message(), "transport: only mapped is allowed here; no mapped: another host");
  const absl::Status grpc = ChooseTransport({Kind::kGrpc, {}}, {{Kind::kTcp, {}}}).status();
  EXPECT_EQ(grpc.message(), "transport: only grpc is allowed here; the peer does not offer it");
}

TEST(TransportChoice, OrdersTheRoutesToAPeer) {
  const std::string all = "10.0.0.1:5,grpc:10.0.0.1:7,rdma:10.0.0.1:6";
  const Route rdma{Kind::kRdma, "rdma:10.0.0.1:6"};
  const Route tcp{Kind::kTcp, "10.0.0.1:5"};
  const Route grpc{Kind::kGrpc, "grpc:10.0.0.1:7"};
  EXPECT_EQ(*ChooseRoutes({}, all), (std::vector<Route>{rdma, tcp, grpc}));
  EXPECT_EQ(*ChooseRoutes({{}, {{Kind::kRdma, "no device"}}}, all),
            (std::vector<Route>{tcp, grpc}));
  EXPECT_EQ(*ChooseRoutes({Kind::kTcp, {}}, all), (std::vector<Route>{tcp}));
  EXPECT_EQ(*ChooseRoutes({Kind::kMapped, {}}, all), (std::vector<Route>{tcp, grpc}));
  EXPECT_EQ(*ChooseRoutes({Kind::kGrpc, {}}, all), (std::vector<Route>{grpc}));
  EXPECT_EQ(*ChooseRoutes({Kind::kRdma, {}}, all), (std::vector<Route>{rdma}));
  EXPECT_EQ(*ChooseRoutes({}, "[::1]:80"), (std::vector<Route>{{Kind::kTcp, "[::1]:80"}}));

  const absl::Status refused = ChooseRoutes({Kind::kGrpc, {}}, "10.0.0.1:5").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused.message(), "transport: only grpc is allowed here; the peer has tcp");
  EXPECT_FALSE(ChooseRoutes({}, "").ok());
  EXPECT_FALSE(ChooseRoutes({}, ",,").ok());
}

TEST(TransportChoice, NamesAreTheFlagsValues) {
  for (const Kind kind : kTransportKinds) {
    EXPECT_EQ(ParseTransportKind(ToString(kind)), kind);
  }
  EXPECT_EQ(ParseTransportKind("auto"), std::nullopt);
  EXPECT_EQ(HostPort("grpc:h:1"), "h:1");
  EXPECT_EQ(HostPort("h:1"), "h:1");
}

}  // namespace
}  // namespace baton
