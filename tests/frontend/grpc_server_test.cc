#include "frontend/grpc_server.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "frontend/admin_service.h"
#include "tests/frontend/test_certificates.h"
#include "tests/support/health_client.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/wait_until.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

// Work that a test holds in its hand.
class FakeWork final : public DrainTarget {
 public:
  void StopIntake() override { intake_stopped = true; }
  std::size_t InFlight() const override { return in_flight; }
  void CancelRest(const absl::Status& why) override {
    cancelled_with = why;
    in_flight = 0;
  }

  std::atomic<bool> intake_stopped{false};
  std::atomic<std::size_t> in_flight{0};
  absl::Status cancelled_with;
};

class GrpcServerTest : public testing::Test {
 protected:
  GrpcServerTest() : admin_([] { return v1::StatusResponse(); }) {}

  absl::StatusOr<std::unique_ptr<GrpcServer>> Start(GrpcServerOptions options = {.role = "test"}) {
    return GrpcServer::Start(std::move(options),
                             {{.name = v1::Admin::service_full_name(), .service = &admin_}});
  }

  static std::shared_ptr<grpc::Channel> Connect(
      const std::string& address,
      const std::shared_ptr<grpc::ChannelCredentials>& credentials =
          grpc::InsecureChannelCredentials()) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(address, credentials, arguments);
  }

  static grpc::Status AskStatus(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
    v1::StatusResponse response;
    return v1::Admin::NewStub(channel)->Status(&context, {}, &response);
  }

  AdminService admin_;
};

// OK, or what a server says to a method it does not have.
grpc::StatusCode AskChannelz(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  const grpc::Slice empty;
  const grpc::ByteBuffer request(&empty, 1);
  grpc::ByteBuffer response;
  absl::Notification done;
  grpc::Status status;
  stub.UnaryCall(&context, "/grpc.channelz.v1.Channelz/GetServers", {}, &request, &response,
                 [&](const grpc::Status& result) {
                   status = result;
                   done.Notify();
                 });
  done.WaitForNotification();
  return status.error_code();
}

TEST_F(GrpcServerTest, ShowsItsConnectionsOnlyWhenAskedTo) {
  {
    const auto server = *Start();
    EXPECT_EQ(AskChannelz(Connect(server->address())), grpc::StatusCode::UNIMPLEMENTED);
  }
  const auto server = *Start({.role = "test", .channelz = true});
  EXPECT_EQ(AskChannelz(Connect(server->address())), grpc::StatusCode::OK);
}

// B65, B61.
TEST_F(GrpcServerTest, HealthFollowsReadyForEveryService) {
  const auto server = *Start();
  const auto channel = Connect(server->address());
  const std::string name = v1::Admin::service_full_name();
  EXPECT_EQ(HealthOf(channel, ""), "NOT_SERVING");
  EXPECT_EQ(HealthOf(channel, name), "NOT_SERVING");
  EXPECT_EQ(HealthOf(channel, "no.such.Service"), "(5)");

  testing::internal::CaptureStdout();
  server->SetReady(true);
  EXPECT_EQ(HealthOf(channel, ""), "SERVING");
  EXPECT_EQ(HealthOf(channel, name), "SERVING");
  server->SetReady(false);
  EXPECT_EQ(HealthOf(channel, name), "NOT_SERVING");
  server->SetReady(true);
  EXPECT_EQ(HealthOf(channel, ""), "SERVING");

  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            absl::StrCat("ready test grpc=", server->address(), "\n"))
      << "printed once";
}

TEST_F(GrpcServerTest, TheReadyLineNamesTheOtherDoors) {
  const auto server =
      *Start({.role = "decode", .listen = "127.0.0.1:0", .advertise_host = "localhost"});
  server->AddDoor("kv", "localhost:4");
  testing::internal::CaptureStdout();
  server->SetReady(true);

  EXPECT_EQ(server->address().rfind("localhost:", 0), 0u);
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            absl::StrCat("ready decode grpc=", server->address(), " kv=localhost:4\n"));
}

TEST_F(GrpcServerTest, ATakenPortIsAClearError) {
  std::string taken;
  {
    const auto server = *Start();
    taken = server->address();
    AdminService other([] { return v1::StatusResponse(); });
    // The signals are taken too, but the port is what a second process would meet.
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddListeningPort(taken, grpc::InsecureServerCredentials());
    builder.RegisterService(&other);
    EXPECT_EQ(builder.BuildAndStart(), nullptr) << "the first server does not share its port";
  }
  grpc::ServerBuilder builder;
  AdminService holder([] { return v1::StatusResponse(); });
  int port = 0;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&holder);
  const auto held = builder.BuildAndStart();
  const std::string address = absl::StrCat("127.0.0.1:", port);
  const auto refused = Start({.role = "test", .listen = address});

  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(refused.status().message()).find(address), std::string::npos);
}

// F12: NOT_SERVING first, intake stops, what runs goes on.
TEST_F(GrpcServerTest, ASignalDrains) {
  const auto server = *Start();
  const auto channel = Connect(server->address());
  testing::internal::CaptureStdout();
  server->SetReady(true);
  testing::internal::GetCapturedStdout();
  FakeWork work;
  work.in_flight = 1;
  int code = -1;
  std::jthread runner([&] { code = server->Run(work); });
  kill(getpid(), SIGTERM);
  ASSERT_TRUE(WaitUntil([&] { return work.intake_stopped.load(); }));
  EXPECT_EQ(HealthOf(channel, ""), "NOT_SERVING");
  server->SetReady(true);
  EXPECT_EQ(HealthOf(channel, ""), "NOT_SERVING") << "stays so once the end has begun";

  work.in_flight = 0;
  runner.join();
  EXPECT_EQ(code, GrpcServer::kDrained);
  EXPECT_TRUE(work.cancelled_with.ok());
}

// F13.
TEST_F(GrpcServerTest, ASecondSignalCutsTheDrainShort) {
  const auto server = *Start();
  FakeWork work;
  work.in_flight = 1;
  int code = -1;
  std::jthread runner([&] { code = server->Run(work); });
  kill(getpid(), SIGINT);
  ASSERT_TRUE(WaitUntil([&] { return work.intake_stopped.load(); }));
  kill(getpid(), SIGTERM);
  runner.join();

  EXPECT_EQ(code, GrpcServer::kDrainCutShort);
  EXPECT_EQ(work.cancelled_with.code(), absl::StatusCode::kUnavailable);
}

TEST_F(GrpcServerTest, TheGraceCutsTheDrainShort) {
  const auto server = *Start({.role = "test", .drain_grace = milliseconds(50)});
  FakeWork work;
  work.in_flight = 1;
  kill(getpid(), SIGTERM);

  EXPECT_EQ(server->Run(work), GrpcServer::kDrainCutShort);
  EXPECT_EQ(work.cancelled_with.code(), absl::StatusCode::kUnavailable);
}

class GrpcServerTlsTest : public GrpcServerTest {
 protected:
  GrpcServerTlsTest() { WriteTestCertificates(folder_.path().string()); }

  std::string Path(const std::string& name) const { return (folder_.path() / name).string(); }

  TemporaryFolder folder_;
};

TEST_F(GrpcServerTlsTest, ServesThoseWhoTrustIt) {
  const auto server =
      *Start({.role = "test", .tls = {.certificate = Path("cert.pem"), .key = Path("key.pem")}});

  EXPECT_TRUE(
      AskStatus(Connect(server->address(), *MakeChannelCredentials({.authority = Path("ca.pem")})))
          .ok());
  EXPECT_EQ(AskStatus(Connect(server->address())).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(GrpcServerTlsTest, WithAnAuthorityEveryClientMustShowACertificate) {
  const TlsFiles all{
      .certificate = Path("cert.pem"), .key = Path("key.pem"), .authority = Path("ca.pem")};
  const auto server = *Start({.role = "test", .tls = all});

  EXPECT_TRUE(AskStatus(Connect(server->address(), *MakeChannelCredentials(all))).ok());
  EXPECT_EQ(
      AskStatus(Connect(server->address(), *MakeChannelCredentials({.authority = Path("ca.pem")})))
          .error_code(),
      grpc::StatusCode::UNAVAILABLE);
}

TEST_F(GrpcServerTlsTest, FilesThatDoNotFitAreRefused) {
  EXPECT_FALSE(CheckTlsFiles({.certificate = "a"}, /*server=*/true).ok());
  EXPECT_FALSE(CheckTlsFiles({.key = "a"}, /*server=*/false).ok());
  EXPECT_FALSE(CheckTlsFiles({.authority = "a"}, /*server=*/true).ok());
  EXPECT_TRUE(CheckTlsFiles({.authority = "a"}, /*server=*/false).ok());
  std::ofstream(Path("no.pem")) << "not a key";
  const auto refused =
      Start({.role = "test", .tls = {.certificate = Path("cert.pem"), .key = Path("no.pem")}});

  EXPECT_NE(std::string(refused.status().message()).find("no.pem"), std::string::npos);
}

// gRPC would start, and no connection would ever be made.
TEST_F(GrpcServerTlsTest, AKeyOfAnotherCertificateIsRefused) {
  const TlsFiles other = TestAuthority(folder_.path().string()).Issue("other-", "DNS:localhost");
  const TlsFiles mixed{.certificate = Path("cert.pem"), .key = other.key};
  for (const absl::Status& refused :
       {Start({.role = "test", .tls = mixed}).status(), MakeChannelCredentials(mixed).status()}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(refused.message()).find("other-key.pem: is not the key of "),
              std::string::npos)
        << refused;
  }
}

// F51: what lies in the files is what new connections are made with.
TEST_F(GrpcServerTlsTest, ReplacedFilesCountWithoutARestart) {
  const auto file_of = [this](const std::string& folder) {
    return TlsFiles{.certificate = Path(folder + "/cert.pem"),
                    .key = Path(folder + "/key.pem"),
                    .authority = Path(folder + "/ca.pem")};
  };
  for (const char* folder : {"old", "new"}) {
    std::filesystem::create_directories(Path(folder));
    WriteTestCertificates(Path(folder));
  }
  std::filesystem::copy(Path("old"), Path("used"));
  const auto server = *Start({.role = "test", .tls = file_of("used")});
  const auto serves = [&](const std::string& folder) {
    return AskStatus(Connect(server->address(), *MakeChannelCredentials(file_of(folder)))).ok();
  };
  const auto replace = [this](const std::string& name) {
    std::filesystem::copy_file(Path("new/" + name), Path("used/" + name),
                               std::filesystem::copy_options::overwrite_existing);
  };
  const auto standing = Connect(server->address(), *MakeChannelCredentials(file_of("old")));
  EXPECT_TRUE(AskStatus(standing).ok());
  EXPECT_FALSE(serves("new")) << "of another authority";

  // While the key is another certificate's nobody gets in, and nothing else comes of it.
  replace("ca.pem");
  replace("key.pem");
  EXPECT_TRUE(WaitUntil([&] { return !serves("old"); }));
  EXPECT_FALSE(serves("new"));
  replace("cert.pem");

  EXPECT_TRUE(WaitUntil([&] { return serves("new"); }));
  EXPECT_FALSE(serves("old"));
  EXPECT_TRUE(AskStatus(standing).ok()) << "a connection that stands goes on";
}

}  // namespace
}  // namespace baton
