#include <gtest/gtest.h>

#include <filesystem>

#include "kvtransfer/grpc_stream/grpc_stream_transport.h"
#include "tests/frontend/test_certificates.h"
#include "tests/kvtransfer/raw_peer.h"

namespace baton {
namespace {

using grpc_stream::MakeTransport;

bool Greets(RawPeer& server, RawPeer& client) {
  const PeerId peer = *client.transport->Connect(server.transport->address());
  EXPECT_TRUE(client.Say(peer, wire::Pong{7}).ok());
  EXPECT_TRUE(WaitUntil([&] {
    while (server.transport->Progress() || client.transport->Progress()) {
    }
    return server.CountOf<wire::Pong>() == 1 || client.closed.size() == 1;
  }));
  return server.CountOf<wire::Pong>() == 1;
}

TEST(GrpcStream, ReportsAConnectionNobodyAnswers) {
  std::string address;
  {
    RawPeer gone(MakeTransport({}));
    address = gone.transport->address();
  }
  RawPeer client(MakeTransport({}));
  const PeerId peer = *client.transport->Connect(address);
  ASSERT_TRUE(client.Say(peer, wire::Pong{1}).ok());
  ASSERT_TRUE(client.Until([&] { return client.closed.size() == 1; }));
  EXPECT_EQ(client.closed[0].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client.sent.size(), 1u);
  EXPECT_FALSE(client.sent[0].status.ok());
}

TEST(GrpcStream, RefusesAPortThatIsTaken) {
  RawPeer first(MakeTransport({}));
  const std::string address = first.transport->address();
  ASSERT_TRUE(address.starts_with("grpc:127.0.0.1:")) << address;
  RawPeer handler(MakeTransport({}));
  const auto second = MakeTransport({.listen = address.substr(5)})(handler);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find("listen at 127.0.0.1"), absl::string_view::npos);
}

TEST(GrpcStream, AdvertisesWhatItIsTold) {
  RawPeer peer(MakeTransport({.listen = "0.0.0.0:0", .advertise_host = "10.1.2.3"}));
  EXPECT_TRUE(peer.transport->address().starts_with("grpc:10.1.2.3:"));
}

// F51: with an authority both sides must show a certificate of it.
TEST(GrpcStream, PeersOfAnotherAuthorityAreRefused) {
  const std::string folder = testing::TempDir() + "/grpc_stream_test";
  const auto make = [&](const std::string& name) {
    const std::string at = folder + name;
    std::filesystem::create_directories(at);
    WriteTestCertificates(at);
    return TlsFiles{
        .certificate = at + "/cert.pem", .key = at + "/key.pem", .authority = at + "/ca.pem"};
  };
  const TlsFiles mutual = make("_ours");
  const TlsFiles others = make("_others");
  const auto attempt = [&](const TlsFiles& files) {
    RawPeer server(MakeTransport({.tls = mutual}));
    RawPeer client(MakeTransport({.tls = files}));
    return Greets(server, client);
  };
  EXPECT_TRUE(attempt(mutual));
  EXPECT_FALSE(attempt(others));
  EXPECT_FALSE(attempt({}));
}

TEST(GrpcStream, DoesNotStartWithFilesThatCannotBeRead) {
  RawPeer handler(MakeTransport({}));
  const TlsFiles missing{.certificate = "/nonexistent/cert.pem", .key = "/nonexistent/key.pem"};
  EXPECT_FALSE(MakeTransport({.tls = missing})(handler).ok());
}

}  // namespace
}  // namespace baton
