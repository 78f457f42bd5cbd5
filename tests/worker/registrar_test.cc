#include "worker/registrar.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <ctime>
#include <optional>

#include "common/file.h"
#include "tests/frontend/test_certificates.h"
#include "tests/support/captured_log.h"
#include "tests/support/patience.h"
#include "tests/support/reserved_port.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/wait_until.h"
#include "tests/worker/fake_fleet.h"
#include "tests/worker/test_hashes.h"
#include "worker/kv_event_log.h"

namespace baton {
namespace {

class RegistrarTest : public testing::Test {
 protected:
  RegistrarTest()
      : hub_(
            [this] {
              v1::WorkerDescription description;
              description.set_model("m");
              description.set_draining(draining_.load());
              return description;
            },
            log_) {}

  std::unique_ptr<Registrar> RegisterWith(std::vector<std::string> routers,
                                          ResolveAddresses resolve = ResolveBySystem,
                                          TlsFiles tls = {}) {
    auto registrar = Registrar::Create({.routers = std::move(routers),
                                        .tls = std::move(tls),
                                        .resolve = std::move(resolve),
                                        .resolve_again = std::chrono::milliseconds(50),
                                        .retry_min = std::chrono::milliseconds(20),
                                        .retry_max = std::chrono::milliseconds(200)},
                                       hub_);
    EXPECT_TRUE(registrar.ok()) << registrar.status();
    return *std::move(registrar);
  }
  static bool Knows(const FakeFleet& router, const std::set<std::string>& held) {
    return WaitUntil([&] {
      const ReportedWorker worker = router.worker();
      return worker.has_snapshot() && worker.held() == held;
    });
  }

  std::atomic<bool> draining_ = false;
  KvEventLog log_;
  ReportHub hub_;
};

TEST_F(RegistrarTest, TellsWhatItIsAndWhatItHoldsAndWhatChanges) {
  const FakeFleet router;
  log_.OnStored(TestHash(1));
  const auto registrar = RegisterWith({router.address()});
  ASSERT_TRUE(Knows(router, HashBytes({1})));
  EXPECT_EQ(router.worker().description().model(), "m");
  log_.OnStored(TestHash(2));
  log_.OnStored(TestHash(3));
  log_.OnRemoved(TestHash(1));
  ASSERT_TRUE(Knows(router, HashBytes({2, 3})));
  EXPECT_EQ(router.worker().events(), 3);
  EXPECT_EQ(router.worker().snapshots(), 1);
  const int before = router.worker().descriptions();
  EXPECT_TRUE(WaitUntil([&] { return router.worker().descriptions() >= before + 2; }));
  EXPECT_EQ(router.opened(), 1);
}

TEST_F(RegistrarTest, AResyncBringsASnapshot) {
  FakeFleet router;
  log_.OnStored(TestHash(1));
  const auto registrar = RegisterWith({router.address()});
  ASSERT_TRUE(Knows(router, HashBytes({1})));
  router.AskSnapshot();
  EXPECT_TRUE(WaitUntil([&] { return router.worker().snapshots() == 2; }));
  log_.OnStored(TestHash(2));
  EXPECT_TRUE(Knows(router, HashBytes({1, 2})));
  EXPECT_EQ(router.opened(), 1);
}

// F6, T68: a router that comes back knows everything again from one snapshot.
TEST_F(RegistrarTest, ARestartedRouterIsToldEverythingAgain) {
  const ReservedPort port;
  std::optional<FakeFleet> router(std::in_place, port.number());
  log_.OnStored(TestHash(1));
  const auto registrar = RegisterWith({router->address()});
  ASSERT_TRUE(Knows(*router, HashBytes({1})));
  router.reset();
  log_.OnStored(TestHash(2));
  router.emplace(port.number());
  EXPECT_TRUE(Knows(*router, HashBytes({1, 2})));
  EXPECT_EQ(router->worker().events(), 0);
}

// F53: whoever starts first waits for the other.
TEST_F(RegistrarTest, ARouterMayComeLater) {
  const ReservedPort port;
  const auto registrar = RegisterWith({absl::StrCat("127.0.0.1:", port.number())});
  log_.OnStored(TestHash(1));
  const FakeFleet router(port.number());
  EXPECT_TRUE(Knows(router, HashBytes({1})));
}

TEST_F(RegistrarTest, EveryRouterHasItsOwnStream) {
  const FakeFleet first;
  std::optional<FakeFleet> second(std::in_place);
  const auto registrar = RegisterWith({first.address(), second->address()});
  log_.OnStored(TestHash(1));
  EXPECT_TRUE(Knows(first, HashBytes({1})));
  EXPECT_TRUE(Knows(*second, HashBytes({1})));
  second.reset();
  log_.OnStored(TestHash(2));
  EXPECT_TRUE(Knows(first, HashBytes({1, 2})));
  EXPECT_EQ(first.opened(), 1);
}

// The stream stays: the router says so again when that changes.
TEST_F(RegistrarTest, ARefusedWorkerStaysAndIsStillHeard) {
  const CapturedLog log;
  FakeFleet router(0, "identity: layers: 2 here, 3 there");
  auto registrar = RegisterWith({router.address()});
  EXPECT_TRUE(WaitUntil([&] { return router.worker().descriptions() >= 3; }));
  v1::RouterNotice again;
  again.set_refused("identity: layers: 2 here, 3 there");
  router.Send(again);
  v1::RouterNotice accepted;
  accepted.mutable_accepted();
  router.Send(accepted);
  const int heard = router.worker().descriptions();
  EXPECT_TRUE(WaitUntil([&] { return router.worker().descriptions() >= heard + 2; }));
  EXPECT_EQ(router.opened(), 1);
  EXPECT_TRUE(log.WaitFor("router.registered")) << log.text();
  registrar.reset();
  const std::string text = log.text();
  EXPECT_EQ(text.find("router.refused"), text.rfind("router.refused")) << text;
  EXPECT_NE(text.find("layers: 2 here, 3 there"), std::string::npos) << text;
}

TEST_F(RegistrarTest, DrainingIsToldAtOnce) {
  const FakeFleet router;
  const auto registrar = RegisterWith({router.address()});
  ASSERT_TRUE(Knows(router, {}));
  draining_ = true;
  hub_.Describe(std::chrono::seconds(10));
  // Written, not yet read: the router has it after the network's time, not after a heartbeat's.
  EXPECT_TRUE(WaitUntil([&] { return router.worker().description().draining(); }));
}

// F53 and a headless service: addresses come and go behind one name.
TEST_F(RegistrarTest, StreamsFollowWhatTheNameStandsFor) {
  const FakeFleet first;
  const FakeFleet second;
  absl::Mutex mutex;
  absl::StatusOr<std::vector<std::string>> answer = absl::UnavailableError("no name server");
  int asked = 0;
  const auto set = [&](absl::StatusOr<std::vector<std::string>> addresses) {
    absl::MutexLock lock(&mutex);
    answer = std::move(addresses);
    asked = 0;
  };
  const auto registrar =
      RegisterWith({"routers.test:80"}, [&](const std::string& name, const std::stop_token&) {
        EXPECT_EQ(name, "routers.test:80");
        absl::MutexLock lock(&mutex);
        ++asked;
        return answer;
      });
  log_.OnStored(TestHash(1));
  set(std::vector{first.address()});
  EXPECT_TRUE(Knows(first, HashBytes({1})));
  EXPECT_EQ(second.open(), 0);
  set(std::vector{first.address(), second.address()});
  EXPECT_TRUE(Knows(second, HashBytes({1})));
  // A name server that fails takes nothing away.
  set(absl::UnavailableError("no name server"));
  EXPECT_TRUE(WaitUntil([&] {
    absl::MutexLock lock(&mutex);
    return asked >= 3;
  }));
  EXPECT_EQ(first.open(), 1);
  EXPECT_EQ(second.open(), 1);
  set(std::vector{second.address()});
  EXPECT_TRUE(WaitUntil([&] { return first.open() == 0; }));
  EXPECT_EQ(second.opened(), 1);
  EXPECT_EQ(first.opened(), 1);
}

// A door that closes every connection as soon as it is there, as one with TLS does to plain text.
class ClosingDoor {
 public:
  ClosingDoor() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    BATON_CHECK(bind(socket_.get(), any, size) == 0 && listen(socket_.get(), 16) == 0 &&
                getsockname(socket_.get(), any, &size) == 0);
    port_ = ntohs(address.sin_port);
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  // False after `patience`.
  bool CloseNext(std::chrono::milliseconds patience) const {
    return WaitUntil([this] { return UniqueFd(accept(socket_.get(), nullptr, nullptr)).ok(); },
                     patience);
  }

 private:
  const UniqueFd socket_;
  int port_ = 0;
};

// F51: a worker that a router does not let in does not give up, and does not hammer at its door.
// The channel pauses for 50 ms, and each time longer, before it connects again. Calls in between
// fail without a connection: the registrar's own pauses are seen by the processor's time alone.
TEST_F(RegistrarTest, WhoIsNotLetInTriesAgainWithPauses) {
  const CapturedLog log;
  const ClosingDoor door;
  auto registrar = RegisterWith({door.address()});
  ASSERT_TRUE(door.CloseNext(kPatience));
  const TimePoint first = Clock::System().Now();
  const std::clock_t computed = std::clock();
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(door.CloseNext(kPatience)) << i;
  }
  EXPECT_GE(Clock::System().Now() - first, std::chrono::milliseconds(500));
  EXPECT_LE(static_cast<double>(std::clock() - computed) / CLOCKS_PER_SEC, 0.5);
  EXPECT_TRUE(log.WaitFor("router.unreachable")) << log.text();
  registrar.reset();
  const std::string text = log.text();
  EXPECT_EQ(text.find("router.unreachable"), text.rfind("router.unreachable")) << text;
  EXPECT_NE(text.find("wants TLS"), std::string::npos) << text;
}

// A process without a certificate of its own, which no flag allows.
TEST_F(RegistrarTest, WithoutACertificateNobodyEntersWhereOneIsWanted) {
  const CapturedLog log;
  const TemporaryFolder folder;
  const TlsFiles files = TestAuthority(folder.path().string()).Issue("", "IP:127.0.0.1");
  const FakeFleet router(0, "", files);
  const auto registrar =
      RegisterWith({router.address()}, ResolveBySystem, {.authority = files.authority});
  EXPECT_TRUE(log.WaitFor("router.unreachable")) << log.text();
  EXPECT_TRUE(log.WaitFor("wants to see a certificate")) << log.text();
  EXPECT_EQ(router.opened(), 0);
}

TEST_F(RegistrarTest, EndsWhatItHasOpened) {
  const FakeFleet router;
  auto registrar = RegisterWith({router.address(), "127.0.0.1:1"});
  ASSERT_TRUE(Knows(router, {}));
  registrar.reset();
  EXPECT_TRUE(WaitUntil([&] { return router.open() == 0; }));
}

TEST_F(RegistrarTest, EndedStreamsStayEnded) {
  const FakeFleet router;
  const auto registrar = RegisterWith({router.address()});
  ASSERT_TRUE(Knows(router, {}));
  hub_.EndStreams();
  EXPECT_TRUE(WaitUntil([&] { return router.open() == 0; }));
}

TEST(ResolveBySystem, KnowsNumbersAndLocalNames) {
  const std::stop_token never;
  EXPECT_EQ(*ResolveBySystem("127.0.0.1:80", never), std::vector<std::string>{"127.0.0.1:80"});
  EXPECT_EQ(*ResolveBySystem("[::1]:80", never), std::vector<std::string>{"[::1]:80"});
  EXPECT_EQ(*ResolveBySystem("localhost:80", never), std::vector<std::string>{"127.0.0.1:80"});
}

TEST(ResolveBySystem, SaysWhatItDidNotFind) {
  const auto addresses = ResolveBySystem("no-such-host.invalid:80", std::stop_token());
  EXPECT_EQ(addresses.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(addresses.status().message().find("no-such-host.invalid:80"), std::string::npos);
}

}  // namespace
}  // namespace baton
