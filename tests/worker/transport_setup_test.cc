#include "worker/transport_setup.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "kvtransfer/ucx/ucx_transport.h"

namespace baton {
namespace {

using Kind = TransportKind;

WorkerFlags Asking(const std::string& transport) {
  WorkerFlags flags;
  flags.kv_transport = transport;
  return flags;
}

// F18: as the kernel describes a device in /sys/class/infiniband.
TEST(TransportSetup, KnowsADeviceWhoseLinkIsDown) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "rdma_devices";
  std::filesystem::remove_all(folder);
  EXPECT_EQ(ucx::FindRdma(folder).why, "no RDMA device");
  EXPECT_FALSE(ucx::FindRdma(folder).any);
  const auto set_port = [&](const std::string& device, const std::string& port,
                            const std::string& state) {
    const std::filesystem::path at = folder / device / "ports" / port;
    std::filesystem::create_directories(at);
    std::ofstream(at / "state") << state << "\n";
  };
  set_port("mlx5_0", "1", "1: DOWN");
  EXPECT_TRUE(ucx::FindRdma(folder).any);
  EXPECT_EQ(ucx::FindRdma(folder).why, "no RDMA device with an active port");
  set_port("mlx5_0", "2", "2: INIT");
  EXPECT_EQ(ucx::FindRdma(folder).why, "no RDMA device with an active port");
  set_port("mlx5_1", "1", "4: ACTIVE");
  EXPECT_EQ(ucx::FindRdma(folder).why, "");
  EXPECT_FALSE(ucx::FindRdma(folder).mlx5);  // a name says nothing: people rename devices
  std::filesystem::create_directories(folder / "ibp3s0" / "device");
  std::filesystem::create_symlink("../../../../bus/pci/drivers/mlx5_core",
                                  folder / "ibp3s0" / "device" / "driver");
  EXPECT_TRUE(ucx::FindRdma(folder).mlx5);
  EXPECT_EQ(ucx::FindRdma(folder).why, "");
}

// T55: what the machine lacks is refused at start, and the message says what.
TEST(TransportSetup, RefusesWhatIsForcedAndAbsentHere) {
  ucx::SetDefaults();
  const std::string no_rdma = ucx::FindRdma().why;
  const absl::Status rdma = SetUpTransport(Asking("rdma"), v1::ROLE_PREFILL, true).status();
  EXPECT_EQ(rdma.ok(), no_rdma.empty()) << rdma;
  if (!no_rdma.empty()) {
    EXPECT_EQ(rdma.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(rdma.message().find("rdma is not to be had here: no RDMA device"),
              absl::string_view::npos)
        << rdma;
  }
  const absl::Status mapped = SetUpTransport(Asking("mapped"), v1::ROLE_PREFILL, false).status();
  EXPECT_EQ(mapped.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(mapped.message().find("device memory"), absl::string_view::npos) << mapped;
}

TEST(TransportSetup, OnlyAPrefillWorkerThatMayBeMappedHasItsPoolInAFile) {
  ucx::SetDefaults();
  const auto has_file = [](const std::string& transport, v1::Role role) {
    const absl::StatusOr<TransportSetup> setup = SetUpTransport(Asking(transport), role, true);
    EXPECT_TRUE(setup.ok()) << setup.status();
    return setup->allocate_pool != nullptr;
  };
  EXPECT_TRUE(has_file("auto", v1::ROLE_PREFILL));
  EXPECT_TRUE(has_file("mapped", v1::ROLE_PREFILL));
  EXPECT_FALSE(has_file("tcp", v1::ROLE_PREFILL));
  EXPECT_FALSE(has_file("grpc", v1::ROLE_PREFILL));
  EXPECT_FALSE(has_file("auto", v1::ROLE_DECODE));
}

TEST(TransportSetup, APairNeedsATransportThatBothAllow) {
  const TransportPolicy all{.forced = {}, .absent = {{Kind::kRdma, "no device"}}};
  const TransportPolicy tcp{.forced = Kind::kTcp, .absent = {}};
  EXPECT_EQ(AllowedTransports(all), (std::vector<std::string>{"mapped", "tcp", "grpc"}));
  EXPECT_EQ(AllowedTransports(tcp), (std::vector<std::string>{"tcp"}));
  EXPECT_TRUE(CheckTransports(all, {"tcp"}).ok());
  EXPECT_TRUE(CheckTransports(tcp, AllowedTransports(all)).ok());
  EXPECT_TRUE(CheckTransports(tcp, {}).ok());
  const absl::Status refused = CheckTransports(tcp, {"grpc", "carrier pigeon"});
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("ours tcp; theirs grpc, carrier pigeon"),
            absl::string_view::npos)
      << refused;
}

}  // namespace
}  // namespace baton
