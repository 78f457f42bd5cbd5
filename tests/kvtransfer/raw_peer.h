#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvtransfer/transport.h"
#include "kvtransfer/wire.h"
#include "tests/kvtransfer/transfer_harness.h"

namespace baton {

// A peer without a TransferService: says whatever the test wants and remembers what it hears. Lives
// on the test's thread.
class RawPeer final : public TransportHandler {
 public:
  explicit RawPeer(const TransportFactory& factory) : instance(InstanceId::Make()) {
    absl::StatusOr<std::unique_ptr<Transport>> made = factory(*this);
    transport = *std::move(made);
  }

  struct Heard {
    PeerId peer;
    std::string bytes;
    absl::StatusOr<wire::Message> message;
  };
  struct Done {
    PeerId peer;
    TransferToken token;
    absl::Status status;
  };

  // Progresses until `condition` holds.
  bool Until(const std::function<bool()>& condition,
             std::chrono::milliseconds patience = kTestPatience) {
    return WaitUntil(
        [&] {
          while (transport->Progress()) {
          }
          return condition();
        },
        patience);
  }

  absl::Status SendBytes(PeerId peer, std::string header, std::span<const std::byte> payload = {}) {
    OutgoingMessage message{
        .header = std::move(header), .payload = {}, .token = TransferToken(next_token++)};
    if (!payload.empty()) {
      message.payload.push_back(payload);
    }
    return transport->Send(peer, std::move(message));
  }
  absl::Status Say(PeerId peer,
                   const wire::Message& message,
                   std::span<const std::byte> payload = {}) {
    return SendBytes(peer, wire::Encode(message), payload);
  }

  // Connects to a service and is welcomed.
  std::optional<PeerId> Greet(const std::string& address, const Digest& fingerprint = {}) {
    const absl::StatusOr<PeerId> peer = transport->Connect(address);
    if (!peer.ok() || !Say(*peer, wire::Hello{instance, fingerprint}).ok() ||
        !Until([&] { return Last<wire::Welcome>() != nullptr; })) {
      return std::nullopt;
    }
    return *peer;
  }

  template <typename M>
  const M* Last() const {
    for (auto heard_message = heard.rbegin(); heard_message != heard.rend(); ++heard_message) {
      if (heard_message->message.ok()) {
        if (const M* typed = std::get_if<M>(&*heard_message->message)) {
          return typed;
        }
      }
    }
    return nullptr;
  }
  template <typename M>
  int CountOf() const {
    int count = 0;
    for (const Heard& one : heard) {
      count += one.message.ok() && std::holds_alternative<M>(*one.message) ? 1 : 0;
    }
    return count;
  }

  void OnAccepted(PeerId peer) override { accepted.push_back(peer); }
  void OnHeard(PeerId /*peer*/) override { ++parts_heard; }
  void OnControl(PeerId peer, std::string_view header) override {
    heard.push_back({peer, std::string(header), wire::Decode(header)});
  }
  ReceivePlan OnData(PeerId peer, std::string_view header, std::size_t payload_bytes) override {
    heard.push_back({peer, std::string(header), wire::Decode(header)});
    data_bytes.push_back(payload_bytes);
    return plan ? plan(payload_bytes) : ReceivePlan{};
  }
  void OnReceived(PeerId peer, TransferToken token, const absl::Status& status) override {
    received.push_back({peer, token, status});
  }
  void OnSent(PeerId peer, TransferToken token, const absl::Status& status) override {
    sent.push_back({peer, token, status});
  }
  void OnClosed(PeerId peer, const absl::Status& why) override {
    closed.push_back({peer, {}, why});
  }

  InstanceId instance;
  std::function<ReceivePlan(std::size_t payload_bytes)> plan;  // absent: everything is dropped
  std::vector<PeerId> accepted;
  int parts_heard = 0;
  std::vector<Heard> heard;
  std::vector<std::size_t> data_bytes;
  std::vector<Done> received;
  std::vector<Done> sent;
  std::vector<Done> closed;
  std::uint64_t next_token = 1;
  std::unique_ptr<Transport> transport;  // last: goes before what its reports fill
};

}  // namespace baton
