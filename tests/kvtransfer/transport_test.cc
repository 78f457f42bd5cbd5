#include <gtest/gtest.h>

#include "kvtransfer/checksum.h"
#include "kvtransfer/transport_set.h"
#include "tests/kvtransfer/raw_peer.h"
#include "tests/kvtransfer/test_transports.h"

namespace baton {
namespace {

// What every transport promises to its handler.
class TransportContract : public testing::TestWithParam<std::string> {
 protected:
  TransportFactory Factory() {
    const std::string name = GetParam();
    const auto rest = [&](std::string_view prefix) {
      return transports_.Messages(name.substr(prefix.size()));
    };
    if (name.starts_with("faulty_")) {
      return faulty::MakeTransport(rest("faulty_"), {});
    }
    if (name.starts_with("set_")) {
      return MakeTransportSet({rest("set_")});
    }
    if (name.starts_with("mapped_")) {
      return mapped::MakeTransport(rest("mapped_"), std::nullopt);
    }
    return transports_.Make(name).All();
  }

  // Progresses both until `condition` holds.
  static bool Both(RawPeer& a, RawPeer& b, const std::function<bool()>& condition) {
    return WaitUntil([&] {
      while (a.transport->Progress() || b.transport->Progress()) {
      }
      return condition();
    });
  }

  TestTransports transports_;
};

std::vector<std::byte> Pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(i * 131 >> 3);
  }
  return bytes;
}

TEST_P(TransportContract, DeliversControlMessagesWholeAndInOrder) {
  RawPeer server(Factory());
  RawPeer client(Factory());
  const PeerId peer = *client.transport->Connect(server.transport->address());

  for (std::uint64_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(client.Say(peer, wire::Pong{i}).ok());
  }
  ASSERT_TRUE(client.SendBytes(peer, std::string(kMaxControlBytes, 'x')).ok());

  ASSERT_TRUE(Both(server, client,
                   [&] { return server.heard.size() == 201 && client.sent.size() == 201; }));
  ASSERT_EQ(server.accepted.size(), 1u);
  for (std::uint64_t i = 0; i < 200; ++i) {
    EXPECT_EQ(std::get<wire::Pong>(*server.heard[i].message).sequence, i);
    EXPECT_EQ(server.heard[i].peer, server.accepted[0]);
  }
  EXPECT_EQ(server.heard[200].bytes, std::string(kMaxControlBytes, 'x'));
}

TEST_P(TransportContract, PlacesPayloadsWhereTheReceiverSays) {
  RawPeer server(Factory());
  RawPeer client(Factory());
  const PeerId peer = *client.transport->Connect(server.transport->address());
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{8191}, std::size_t{8192}, std::size_t{3} << 20}) {
    const std::vector<std::byte> payload = Pattern(size);
    std::vector<std::byte> target(size + 2, std::byte{0xee});
    // In three parts, the middle ones last in memory, so that order is by the plan and not by
    // address.
    const std::size_t third = size / 3;
    server.plan = [&](std::size_t bytes) {
      EXPECT_EQ(bytes, size);
      ReceivePlan plan{.accept = true, .destinations = {}, .token = TransferToken(size)};
      plan.destinations.emplace_back(target.data() + 1, third);
      plan.destinations.emplace_back(target.data() + 1 + third, size - third);
      return plan;
    };
    const std::size_t before = server.received.size();
    ASSERT_TRUE(client.SendBytes(peer, "header", payload).ok());
    ASSERT_TRUE(Both(server, client, [&] { return server.received.size() > before; })) << size;
    EXPECT_EQ(server.heard.back().bytes, "header");
    EXPECT_TRUE(server.received.back().status.ok()) << server.received.back().status;
    EXPECT_EQ(server.received.back().token, TransferToken(size));
    EXPECT_TRUE(std::equal(payload.begin(), payload.end(), target.begin() + 1)) << size;
    EXPECT_EQ(target.front(), std::byte{0xee});
    EXPECT_EQ(target.back(), std::byte{0xee});
  }
  EXPECT_TRUE(Both(server, client, [&] { return client.sent.size() == 4; }));
}

// What the receiving side has copied and what the sending side has read are said apart, so that
// whoever compares them sees damage between the two.
TEST_P(TransportContract, TellsTheChecksumThatItIsAskedToSend) {
  RawPeer server(Factory());
  RawPeer client(Factory());
  const PeerId peer = *client.transport->Connect(server.transport->address());
  ASSERT_TRUE(client.Say(peer, wire::Pong{1}).ok());
  ASSERT_TRUE(Both(server, client, [&] { return server.CountOf<wire::Pong>() == 1; }));
  const std::vector<std::byte> payload = Pattern(1 << 20);
  if (!client.transport->SendsChecksums(peer, payload.size())) {
    GTEST_SKIP() << "sends no checksums";
  }
  const std::uint32_t expected = Checksum(std::vector{std::span(payload)});
  for (const bool asked : {true, false}) {
    std::vector<std::byte> target(payload.size());
    const auto copied = std::make_shared<CopiedChecksum>();
    server.plan = [&](std::size_t) {
      return ReceivePlan{.accept = true,
                         .destinations = {std::span(target)},
                         .token = TransferToken(1),
                         .copied = copied};
    };
    const std::size_t before = server.received.size();
    ASSERT_TRUE(client.transport
                    ->Send(peer, {.header = "header",
                                  .payload = {std::span(payload)},
                                  .token = TransferToken(2),
                                  .send_checksum = asked})
                    .ok());
    ASSERT_TRUE(Both(server, client, [&] { return server.received.size() > before; }));
    EXPECT_EQ(copied->bytes, payload.size());
    EXPECT_EQ(copied->crc32c, expected);
    EXPECT_EQ(copied->sent == expected, asked);
    EXPECT_EQ(target, payload);
  }
}

// Over a network a long message takes its time, in which nothing else can tell of a living peer.
TEST_P(TransportContract, PartsOfALongMessageAreHeardBeforeItsEnd) {
  if (GetParam().find("inproc") != std::string::npos) {
    GTEST_SKIP() << "hands messages over whole";
  }
  RawPeer server(Factory());
  RawPeer client(Factory());
  const PeerId peer = *client.transport->Connect(server.transport->address());
  ASSERT_TRUE(client.Say(peer, wire::Pong{1}).ok());
  ASSERT_TRUE(Both(server, client, [&] { return server.CountOf<wire::Pong>() == 1; }));
  const std::string carrier = client.transport->CarrierOf(peer);
  if (carrier != "tcp" && carrier != "grpc") {
    GTEST_SKIP() << carrier << " moves a message by itself, in less time than a peer may be silent";
  }
  const std::vector<std::byte> payload = Pattern(1 << 20);
  std::vector<std::byte> target(payload.size());
  server.plan = [&](std::size_t) {
    return ReceivePlan{
        .accept = true, .destinations = {std::span(target)}, .token = TransferToken(1)};
  };
  ASSERT_TRUE(client.SendBytes(peer, "header", payload).ok());
  ASSERT_TRUE(Both(server, client, [&] { return server.parts_heard > 0; }));
  ASSERT_TRUE(Both(server, client, [&] { return server.received.size() == 1; }));
  EXPECT_EQ(target, payload);
}

TEST_P(TransportContract, DropsPayloadsNobodyWantsAndGoesOn) {
  RawPeer server(Factory());
  RawPeer client(Factory());
  const PeerId peer = *client.transport->Connect(server.transport->address());
  const std::vector<std::byte> payload = Pattern(1 << 20);

  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(client.SendBytes(peer, "header", payload).ok());
  }
  ASSERT_TRUE(client.Say(peer, wire::Pong{1}).ok());

  ASSERT_TRUE(Both(server, client,
                   [&] { return server.data_bytes.size() == 10 && client.sent.size() == 11; }));
  EXPECT_TRUE(server.received.empty());
  EXPECT_TRUE(Both(server, client, [&] { return server.CountOf<wire::Pong>() == 1; }));
}

TEST_P(TransportContract, PlacesWhatWaitsWhenItIsToldWhere) {
  RawPeer server(Factory());
  RawPeer client(Factory());
  const PeerId peer = *client.transport->Connect(server.transport->address());
  std::uint64_t planned = 0;
  server.plan = [&](std::size_t) {
    return ReceivePlan{.accept = true, .later = true, .token = TransferToken(planned++)};
  };
  const std::vector<std::vector<std::byte>> payloads = {Pattern(100), Pattern(3 << 20)};
  for (const std::vector<std::byte>& payload : payloads) {
    ASSERT_TRUE(client.SendBytes(peer, "header", payload).ok());
  }
  ASSERT_TRUE(client.Say(peer, wire::Pong{1}).ok());
  // What waits holds up nothing else.
  ASSERT_TRUE(
      Both(server, client, [&] { return planned == 2 && server.CountOf<wire::Pong>() == 1; }));
  EXPECT_TRUE(server.received.empty());

  // The other way round than they came.
  for (const std::uint64_t token : {1, 0}) {
    const std::vector<std::byte>& payload = payloads[token];
    std::vector<std::byte> target(payload.size());
    server.transport->Place(server.accepted[0], TransferToken(token),
                            {std::span(target).first(10), std::span(target).subspan(10)});
    const std::size_t before = server.received.size();
    ASSERT_EQ(before, 1 - token) << "reported outside of Progress";
    ASSERT_TRUE(Both(server, client, [&] { return server.received.size() > before; }));
    EXPECT_TRUE(server.received.back().status.ok()) << server.received.back().status;
    EXPECT_EQ(server.received.back().token, TransferToken(token));
    EXPECT_EQ(payload, target);
  }
  EXPECT_TRUE(Both(server, client, [&] { return client.sent.size() == 3; }));
}

TEST_P(TransportContract, CloseAnswersForWhatWaits) {
  RawPeer server(Factory());
  RawPeer client(Factory());
  const std::vector<std::byte> small = Pattern(100);
  const std::vector<std::byte> big = Pattern(3 << 20);
  for (const bool server_closes : {false, true}) {
    const PeerId peer = *client.transport->Connect(server.transport->address());
    std::uint64_t planned = 0;
    server.plan = [&](std::size_t) {
      return ReceivePlan{.accept = true, .later = true, .token = TransferToken(planned++)};
    };
    const std::size_t sent = client.sent.size();
    const std::size_t received = server.received.size();
    const std::size_t closed = server.closed.size();
    ASSERT_TRUE(client.SendBytes(peer, "header", small).ok());
    ASSERT_TRUE(client.SendBytes(peer, "header", big).ok());
    ASSERT_TRUE(Both(server, client, [&] { return planned == 2; }));

    RawPeer& closer = server_closes ? server : client;
    closer.transport->Close(server_closes ? server.accepted.back() : peer);
    ASSERT_TRUE(Both(server, client, [&] {
      return client.closed.size() == closed + 1 && server.closed.size() == closed + 1;
    }));
    EXPECT_EQ(client.sent.size(), sent + 2);
    ASSERT_EQ(server.received.size(), received + 2);
    EXPECT_FALSE(server.received.back().status.ok());
    // Comes too late.
    std::vector<std::byte> target(big.size());
    server.transport->Place(server.accepted.back(), TransferToken(1), {target});
    EXPECT_FALSE(WaitUntil(
        [&] {
          server.transport->Progress();
          client.transport->Progress();
          return server.received.size() > received + 2;
        },
        std::chrono::milliseconds(20)));
    EXPECT_EQ(target, std::vector<std::byte>(big.size()));
  }
}

// Invariant of every pin: after OnClosed nothing is under way, and every message has been answered
// for.
TEST_P(TransportContract, CloseAnswersForEverythingUnderWayExactlyOnce) {
  RawPeer server(Factory());
  RawPeer client(Factory());
  const PeerId peer = *client.transport->Connect(server.transport->address());
  ASSERT_TRUE(client.Say(peer, wire::Pong{1}).ok());
  ASSERT_TRUE(
      Both(server, client, [&] { return !server.heard.empty() && client.sent.size() == 1; }));
  const std::vector<std::byte> payload = Pattern(3 << 20);
  std::vector<std::vector<std::byte>> targets(8, std::vector<std::byte>(payload.size()));
  std::size_t planned = 0;
  server.plan = [&](std::size_t) {
    ReceivePlan plan{
        .accept = true, .destinations = {targets[planned]}, .token = TransferToken(planned)};
    ++planned;
    return plan;
  };

  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(client.SendBytes(peer, "header", payload).ok());
  }
  ASSERT_TRUE(Both(server, client, [&] { return planned >= 2; }));
  client.transport->Close(peer);
  EXPECT_FALSE(client.Say(peer, wire::Pong{2}).ok());

  ASSERT_TRUE(
      Both(server, client, [&] { return client.closed.size() == 1 && server.closed.size() == 1; }));
  EXPECT_EQ(client.sent.size(), 9u);
  EXPECT_EQ(server.received.size(), planned);
  // Whatever comes later concerns nobody.
  for (std::vector<std::byte>& target : targets) {
    std::fill(target.begin(), target.end(), std::byte{0xee});
  }
  EXPECT_FALSE(WaitUntil(
      [&] {
        client.transport->Progress();
        server.transport->Progress();
        return client.closed.size() > 1 || client.sent.size() > 9 ||
               server.received.size() > planned;
      },
      std::chrono::milliseconds(50)));
  for (const std::vector<std::byte>& target : targets) {
    EXPECT_TRUE(std::all_of(target.begin(), target.end(),
                            [](std::byte b) { return b == std::byte{0xee}; }));
  }
}

// A receiver that closes while its own memory is being filled.
TEST_P(TransportContract, ReceiverMayCloseInTheMiddle) {
  RawPeer server(Factory());
  RawPeer client(Factory());
  const PeerId peer = *client.transport->Connect(server.transport->address());
  const std::vector<std::byte> payload = Pattern(3 << 20);
  std::vector<std::byte> target(payload.size());
  int planned = 0;
  server.plan = [&](std::size_t) {
    ++planned;
    return ReceivePlan{.accept = true, .destinations = {target}, .token = TransferToken(1)};
  };
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(client.SendBytes(peer, "header", payload).ok());
  }
  ASSERT_TRUE(Both(server, client, [&] { return planned > 0; }));

  server.transport->Close(server.accepted[0]);

  ASSERT_TRUE(
      Both(server, client, [&] { return client.closed.size() == 1 && server.closed.size() == 1; }));
  EXPECT_EQ(client.sent.size(), 4u);
  EXPECT_EQ(server.received.size(), static_cast<std::size_t>(planned));
}

TEST_P(TransportContract, ManyConnectionsComeAndGo) {
  RawPeer server(Factory());
  RawPeer client(Factory());
  for (std::size_t i = 0; i < 20; ++i) {
    const PeerId peer = *client.transport->Connect(server.transport->address());
    ASSERT_TRUE(client.Say(peer, wire::Pong{i}).ok());
    ASSERT_TRUE(Both(server, client, [&] { return server.heard.size() == i + 1; }));
    client.transport->Close(peer);
    ASSERT_TRUE(Both(server, client, [&] {
      return client.closed.size() == i + 1 && server.closed.size() == i + 1;
    }));
  }
}

TEST_P(TransportContract, RefusesDeviceMemoryAndBadAddresses) {
  RawPeer peer(Factory());
  std::byte byte{};
  EXPECT_EQ(peer.transport->RegisterRegion({&byte, 1, MemoryKind::kCudaDevice}).code(),
            GetParam().starts_with("staged_") ? absl::StatusCode::kOk
                                              : absl::StatusCode::kFailedPrecondition);
  for (const char* address : {"", "nowhere", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999",
                              "a.host.name:80", "rdma:127.0.0.1:80", "grpc:", "grpc::80"}) {
    EXPECT_FALSE(peer.transport->Connect(address).ok()) << address;
  }
}

INSTANTIATE_TEST_SUITE_P(Transports,
                         TransportContract,
                         testing::Values("inproc",
                                         "ucx",
                                         "grpc",
                                         "faulty_inproc",
                                         "set_inproc",
                                         "set_ucx",
                                         "set_grpc",
                                         "mapped_inproc"),
                         kTransportName);
INSTANTIATE_TEST_SUITE_P(DevicePools,
                         TransportContract,
                         testing::Values("staged_inproc", "staged_ucx", "staged_grpc"),
                         kTransportName);

TEST(UcxTransport, ReportsAConnectionNobodyAnswers) {
  ucx::SetDefaults();
  std::string address;
  {
    RawPeer gone(ucx::MakeTransport({}));
    address = gone.transport->address();
  }
  RawPeer client(ucx::MakeTransport({}));
  const absl::StatusOr<PeerId> peer = client.transport->Connect(address);
  if (peer.ok()) {
    EXPECT_TRUE(client.Until([&] { return client.closed.size() == 1; }));
    EXPECT_EQ(client.closed[0].status.code(), absl::StatusCode::kUnavailable);
  }
}

TEST(UcxTransport, ListensAtANameAndAdvertisesANumber) {
  ucx::SetDefaults();
  RawPeer server(ucx::MakeTransport({.listen_host = "localhost"}));
  EXPECT_TRUE(server.transport->address().starts_with("127.0.0.1:")) << server.transport->address();
  RawPeer everywhere(ucx::MakeTransport({.listen_host = "0.0.0.0", .advertise_host = "localhost"}));
  EXPECT_TRUE(everywhere.transport->address().starts_with("127.0.0.1:"));
  const PeerId peer = *server.transport->Connect(everywhere.transport->address());
  ASSERT_TRUE(server.Say(peer, wire::Pong{1}).ok());
  EXPECT_TRUE(WaitUntil([&] {
    server.transport->Progress();
    everywhere.transport->Progress();
    return everywhere.heard.size() == 1;
  }));

  const auto nowhere = ucx::MakeTransport({.listen_host = "no such host"})(server);
  EXPECT_EQ(nowhere.status().code(), absl::StatusCode::kInvalidArgument) << nowhere.status();
}

TEST(UcxTransport, RefusesAPortThatIsTaken) {
  ucx::SetDefaults();
  RawPeer first(ucx::MakeTransport({}));
  const std::string address = first.transport->address();
  const int port = std::stoi(address.substr(address.rfind(':') + 1));
  RawPeer handler(ucx::MakeTransport({}));
  const auto second = ucx::MakeTransport({.port = port})(handler);
  EXPECT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find("listen at 127.0.0.1"), absl::string_view::npos)
      << second.status();
}

// The double has its own test: each action does what its name says, at the message it is told.
TEST(FaultyTransport, DamagesExactlyTheMessagesNamed) {
  using faulty::FaultAction;
  const std::shared_ptr<inproc::Hub> hub = inproc::MakeHub();
  const auto log = std::make_shared<faulty::FaultLog>();
  RawPeer server(inproc::MakeTransport(hub));
  RawPeer client(faulty::MakeTransport(
      inproc::MakeTransport(hub),
      {{.action = FaultAction::kDrop, .type = wire::MessageType::kPong, .first = 1},
       {.action = FaultAction::kDuplicate, .type = wire::MessageType::kPong, .first = 2},
       {.action = FaultAction::kDelay, .type = wire::MessageType::kPong, .first = 3},
       {.action = FaultAction::kTruncate, .type = wire::MessageType::kAck},
       {.action = FaultAction::kFlip, .type = wire::MessageType::kData},
       {.action = FaultAction::kKill, .type = wire::MessageType::kCancel}},
      log));
  std::vector<std::byte> target(100);
  server.plan = [&](std::size_t bytes) {
    return ReceivePlan{.accept = true,
                       .destinations = {std::span(target).first(bytes)},
                       .token = TransferToken(1)};
  };
  const PeerId peer = *client.transport->Connect(server.transport->address());
  const std::vector<std::byte> payload = Pattern(100);
  const auto drain = [&](std::size_t sent) {
    return WaitUntil([&] {
      client.transport->Progress();
      server.transport->Progress();
      return client.sent.size() == sent;
    });
  };

  for (std::uint64_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(client.Say(peer, wire::Pong{i}).ok());
  }
  ASSERT_TRUE(client.Say(peer, wire::Ack{}).ok());
  ASSERT_TRUE(client.Say(peer, wire::Data{.blocks = {0}}, payload).ok());
  ASSERT_TRUE(drain(7));
  ASSERT_TRUE(client.Say(peer, wire::Cancel{}).ok());
  ASSERT_TRUE(drain(8));

  std::vector<std::uint64_t> pongs;
  int undecodable = 0;
  for (const RawPeer::Heard& heard : server.heard) {
    if (heard.message.ok() && std::holds_alternative<wire::Pong>(*heard.message)) {
      pongs.push_back(std::get<wire::Pong>(*heard.message).sequence);
    }
    undecodable += heard.message.ok() ? 0 : 1;
  }
  EXPECT_EQ(pongs, (std::vector<std::uint64_t>{0, 2, 2, 4, 3}));
  EXPECT_EQ(undecodable, 1);
  int different = 0;
  for (std::size_t i = 0; i < payload.size(); ++i) {
    different += payload[i] == target[i] ? 0 : 1;
  }
  EXPECT_EQ(different, 1);
  EXPECT_EQ(client.closed.size(), 1u);
  EXPECT_EQ(log->injected, 6);
}

}  // namespace
}  // namespace baton
