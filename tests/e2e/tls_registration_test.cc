// Workers that register at a router whose door speaks TLS, and those that must not get in (F51).
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "absl/strings/match.h"
#include "tests/frontend/test_certificates.h"
#include "tests/support/cluster.h"
#include "tests/support/health_client.h"
#include "tests/support/reference_engine.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/wait_until.h"
#include "tests/worker/fake_fleet.h"

namespace baton {
namespace {

constexpr char kLoopback[] = "DNS:localhost,IP:127.0.0.1";

std::vector<std::string> FlagsOf(const TlsFiles& files) {
  std::vector<std::string> flags;
  const auto add = [&flags](const char* flag, const std::string& path) {
    if (!path.empty()) {
      flags.insert(flags.end(), {flag, path});
    }
  };
  add("--tls-cert", files.certificate);
  add("--tls-key", files.key);
  add("--tls-ca", files.authority);
  return flags;
}

class TlsRegistrationTest : public testing::Test {
 protected:
  TlsRegistrationTest() : ours_(NewFolder("ours")), others_(NewFolder("others")) {}

  std::string NewFolder(const std::string& name) const {
    const std::filesystem::path path = folder_.path() / name;
    std::filesystem::create_directories(path);
    return path.string();
  }

  static std::vector<std::string> Flags(const TlsFiles& files) {
    std::vector<std::string> flags = TinyModel().Flags();
    const std::vector<std::string> tls = FlagsOf(files);
    flags.insert(flags.end(), tls.begin(), tls.end());
    return flags;
  }
  static std::unique_ptr<ServerProcess> StartWorker(const TlsFiles& files,
                                                    const std::string& router) {
    auto worker = std::make_unique<ServerProcess>("decode", Flags(files));
    worker->AddFlags({"--kv-pool-size", "8MiB", "--router", router});
    EXPECT_EQ(worker->Start(), absl::OkStatus());
    return worker;
  }
  static int PortOf(const std::string& address) {
    return std::stoi(address.substr(address.rfind(':') + 1));
  }

  const TemporaryFolder folder_;
  TestAuthority ours_;
  TestAuthority others_;
  const TlsFiles router_files_ = ours_.Issue("router-", kLoopback);
  const TlsFiles worker_files_ = ours_.Issue("worker-", kLoopback);
};

// Asks by both paths: the router calls the decode worker, and this one the prefill worker.
void ExpectBothPaths(Cluster& cluster) {
  auto reference = ReferenceEngine::Start(TinyModel());
  ASSERT_TRUE(reference.ok()) << reference.status();
  for (const v1::Path path : {v1::PATH_COLOCATED, v1::PATH_DISAGGREGATED}) {
    const v1::CompleteRequest request = GreedyRequest(TinyPrompt(3, 600), 8, path);
    const auto response = cluster.client().Complete(request);
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(TokensOf(*response), *(*reference)->Generate(request));
    EXPECT_EQ(response->timeline().path(), path);
  }
}

TEST_F(TlsRegistrationTest, WorkersWithCertificatesOfTheAuthorityServe) {
  auto cluster = Cluster::Start({.worker_flags = FlagsOf(worker_files_),
                                 .router_flags = FlagsOf(router_files_),
                                 .registered = true});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ExpectBothPaths(**cluster);

  // Nobody gets in without, neither at the router nor past it.
  for (ServerProcess* server :
       {&(*cluster)->router(), &(*cluster)->decode(), &(*cluster)->prefill()}) {
    EXPECT_FALSE(CompletionsClient(server->address()).IsServing());
    EXPECT_FALSE(
        CompletionsClient(server->address(), {.authority = router_files_.authority}).IsServing());
    EXPECT_TRUE(CompletionsClient(server->address(), router_files_).IsServing());
  }
  // F8, over TLS: each of them comes back at its address.
  ASSERT_EQ((*cluster)->prefill().Start(), absl::OkStatus());
  ASSERT_TRUE((*cluster)->WaitForUsableWorkers(2));
  ASSERT_EQ((*cluster)->router().Start(), absl::OkStatus());
  ASSERT_TRUE((*cluster)->WaitForUsableWorkers(2));
  ExpectBothPaths(**cluster);
  EXPECT_TRUE((*cluster)->WaitUntilIdle());
}

// The way for networks that are not trusted: nothing at all goes in plain text.
TEST_F(TlsRegistrationTest, BlocksTravelUnderTheSameCertificates) {
  std::vector<std::string> worker_flags = FlagsOf(worker_files_);
  worker_flags.insert(worker_flags.end(), {"--kv-transport", "grpc"});
  auto cluster = Cluster::Start(
      {.worker_flags = worker_flags, .router_flags = FlagsOf(router_files_), .registered = true});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ExpectBothPaths(**cluster);
  const auto description = (*cluster)->decode().Describe();
  ASSERT_TRUE(description.ok()) << description.status();
  ASSERT_EQ(description->kv_peers_size(), 1);
  EXPECT_EQ(description->kv_peers(0).transport(), "grpc");
  // The listener of blocks lets nobody in either who shows nothing.
  const std::string kv = (*cluster)->prefill().Door("kv");
  EXPECT_EQ(HealthOf(MakeTestChannel(kv), ""), "(14)");
  EXPECT_EQ(HealthOf(MakeTestChannel(kv, {.authority = router_files_.authority}), ""), "(14)");
  EXPECT_NE(HealthOf(MakeTestChannel(kv, router_files_), ""), "(14)");
}

// F51: another authority, and all its certificates, in the place of the old ones.
TEST_F(TlsRegistrationTest, CertificatesAreReplacedWithoutARestart) {
  auto cluster = Cluster::Start({.worker_flags = FlagsOf(worker_files_),
                                 .router_flags = FlagsOf(router_files_),
                                 .registered = true});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ExpectBothPaths(**cluster);
  const TlsFiles client = others_.Issue("client-", kLoopback);
  const std::vector<ServerProcess*> servers = {&(*cluster)->router(), &(*cluster)->decode(),
                                               &(*cluster)->prefill()};
  for (const ServerProcess* server : servers) {
    EXPECT_FALSE(CompletionsClient(server->address(), client).IsServing());
  }

  const auto replace = [](const TlsFiles& from, const TlsFiles& to) {
    std::filesystem::rename(from.certificate, to.certificate);
    std::filesystem::rename(from.key, to.key);
    std::filesystem::copy_file(from.authority, to.authority,
                               std::filesystem::copy_options::overwrite_existing);
  };
  replace(others_.Issue("router-", kLoopback), router_files_);
  replace(others_.Issue("worker-", kLoopback), worker_files_);

  for (const ServerProcess* server : servers) {
    EXPECT_TRUE(
        WaitUntil([&] { return CompletionsClient(server->address(), client).IsServing(); }));
  }
  // New connections in every direction: from the worker to the router, from this and from the
  // decode worker to the worker.
  ASSERT_EQ((*cluster)->prefill().Start(), absl::OkStatus());
  ASSERT_TRUE((*cluster)->WaitForUsableWorkers(2));
  ExpectBothPaths(**cluster);
  EXPECT_TRUE((*cluster)->WaitUntilIdle());
}

// By a name: the certificate is for the name, not for the address that it stands for.
TEST_F(TlsRegistrationTest, ARouterIsKnownByTheNameThatTheFlagSays) {
  const FakeFleet router(0, "", ours_.Issue("named-", "DNS:localhost"));
  const auto worker = StartWorker(worker_files_, absl::StrCat("localhost:", router.port()));
  EXPECT_TRUE(WaitUntil([&] { return router.worker().has_snapshot(); }));
  EXPECT_EQ(router.worker().description().address(), worker->address());
}

// The authorities of the system, and no client certificate: a router that anybody may call.
TEST_F(TlsRegistrationTest, OneWayTlsHasTheAuthoritiesOfTheSystem) {
  const std::string authority = router_files_.authority;
  ASSERT_EQ(setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", authority.c_str(), 1), 0);
  const auto without_authority = [](TlsFiles files) {
    files.authority.clear();
    return FlagsOf(files);
  };
  auto cluster = Cluster::Start({.worker_flags = without_authority(worker_files_),
                                 .router_flags = without_authority(router_files_),
                                 .registered = true});
  unsetenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ExpectBothPaths(**cluster);
  EXPECT_TRUE(
      CompletionsClient((*cluster)->router().address(), {.authority = authority}).IsServing());
}

// Both sides are sound and only do not fit.
struct Misfit {
  const char* name;
  TlsFiles router;
  TlsFiles worker;
  TlsFiles fitting;  // what a router would have to have
  const char* says;
};

class TlsRefusalTest : public TlsRegistrationTest {
 protected:
  std::vector<Misfit> Misfits() {
    const TlsFiles stranger = others_.Issue("worker-", kLoopback);
    TlsFiles believer = stranger;  // in our authority, which does not know it
    believer.authority = router_files_.authority;
    TlsFiles believing = others_.Issue("router-", kLoopback);
    believing.certificate = router_files_.certificate;
    believing.key = router_files_.key;
    const TlsFiles old = ours_.Issue("old-", kLoopback, TestAuthority::Validity::kOver);
    const TlsFiles elsewhere = ours_.Issue("elsewhere-", "DNS:elsewhere.test,IP:10.1.2.3");
    return {
        {"the worker is of another authority", router_files_, stranger,
         others_.Issue("router-", kLoopback), "certificate is not accepted here"},
        {"the worker's certificate is of another authority", router_files_, believer, believing,
         "does not accept the certificate of --tls-cert"},
        {"the worker speaks plain text", router_files_, {}, {}, "wants TLS"},
        {"the router speaks plain text", {}, worker_files_, router_files_, "speaks plain text"},
        {"the router's certificate has expired", old, worker_files_, router_files_,
         "certificate is not accepted here: expired"},
        {"the router's certificate is for another name", elsewhere, worker_files_, router_files_,
         "is for another name or address"},
    };
  }
};

// F51: whoever does not fit is kept out and told why in words that help, once; it gets in
// without a restart as soon as the router is one that it fits.
TEST_F(TlsRefusalTest, AWorkerThatDoesNotFitStaysOutAndSaysWhy) {
  for (const Misfit& misfit : Misfits()) {
    SCOPED_TRACE(misfit.name);
    ServerProcess router("router", Flags(misfit.router));
    ASSERT_EQ(router.Launch(), absl::OkStatus());
    const auto router_log = [&] { return router.process().ErrorOutput(); };
    ASSERT_TRUE(WaitUntil([&] { return absl::StrContains(router_log(), "server.listening"); }));
    const auto worker = StartWorker(misfit.worker, router.address());
    const auto log = [&] { return worker->process().ErrorOutput(); };
    ASSERT_TRUE(WaitUntil([&] { return absl::StrContains(log(), "router.unreachable"); }));
    EXPECT_TRUE(absl::StrContains(log(), misfit.says)) << log();
    EXPECT_FALSE(absl::StrContains(router_log(), "fleet.")) << router_log();

    router.process().Kill();
    const FakeFleet fits(PortOf(router.address()), "", misfit.fitting);
    EXPECT_TRUE(WaitUntil([&] { return fits.worker().has_snapshot(); })) << log();
    EXPECT_EQ(log().find("router.unreachable"), log().rfind("router.unreachable")) << log();
    worker->process().Signal(SIGTERM);
    const auto end = worker->process().WaitForEnd(kPatience);
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->code, 0);
  }
}

// A worker that its own router cannot call back is in the fleet, but no answer comes of it, and
// both the log and the client say what is wrong.
TEST_F(TlsRefusalTest, AWorkerWithACertificateForAnotherAddressIsNamed) {
  ServerProcess router("router", Flags(router_files_));
  ASSERT_EQ(router.Launch(), absl::OkStatus());
  const auto worker =
      StartWorker(ours_.Issue("elsewhere-", "DNS:elsewhere.test,IP:10.1.2.3"), router.address());
  ASSERT_EQ(router.AwaitReady(), absl::OkStatus());
  const auto response = CompletionsClient(router.address(), router_files_)
                            .Complete(GreedyRequest(TinyPrompt(1, 8), 2, v1::PATH_UNSPECIFIED));
  EXPECT_EQ(response.status().code(), absl::StatusCode::kUnavailable) << response.status();
  EXPECT_TRUE(absl::StrContains(response.status().message(), "certificate")) << response.status();
}

TEST_F(TlsRefusalTest, AWorkerWithoutACertificateOfItsOwnDoesNotStart) {
  ServerProcess worker("decode", Flags({.authority = router_files_.authority}));
  ASSERT_EQ(worker.Launch(), absl::OkStatus());
  const auto end = worker.process().WaitForEnd(kPatience);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->code, 2);
  EXPECT_TRUE(absl::StrContains(worker.process().ErrorOutput(), "--tls-cert"))
      << worker.process().ErrorOutput();
}

}  // namespace
}  // namespace baton
