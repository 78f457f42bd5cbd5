#include "kvtransfer/faulty/faulty_transport.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace baton::faulty {
namespace {

std::optional<wire::MessageType> TypeOf(const std::string& header) {
  const absl::StatusOr<wire::Message> message = wire::Decode(header);
  if (!message.ok()) {
    return std::nullopt;
  }
  return std::visit([](const auto& typed) { return typed.kType; }, *message);
}

class FaultyTransport;

// One reader of the wrapped transport; what goes wrong is the transport's business.
class FaultyReader final : public PoolReader {
 public:
  FaultyReader(PoolReader& inner, FaultyTransport& transport)
      : inner_(inner), transport_(transport) {}

  TransportKind kind() const override { return inner_.kind(); }
  std::string Door() const override { return inner_.Door(); }
  absl::Status Open(PeerId peer, std::string_view door, std::uint64_t pool_bytes) override {
    return inner_.Open(peer, door, pool_bytes);
  }
  absl::Status Read(PeerId peer, PoolRead read) override;

 private:
  PoolReader& inner_;
  FaultyTransport& transport_;
};

// Sits between a transport and its handler, so it can answer for messages that never go out.
//
// Not thread-safe: used only by the transfer thread.
class FaultyTransport final : public Transport, public TransportHandler {
 public:
  FaultyTransport(std::vector<Fault> faults,
                  std::shared_ptr<FaultLog> log,
                  TransportHandler& handler)
      : faults_(std::move(faults)),
        log_(std::move(log)),
        seen_(faults_.size(), 0),
        handler_(handler) {}

  void Wrap(std::unique_ptr<Transport> inner) {
    inner_ = std::move(inner);
    for (PoolReader* reader : inner_->readers()) {
      readers_.push_back(std::make_unique<FaultyReader>(*reader, *this));
    }
  }

  std::string address() const override { return inner_->address(); }
  absl::Status RegisterRegion(const MemoryRegion& region) override {
    return inner_->RegisterRegion(region);
  }
  absl::StatusOr<PeerId> Connect(const std::string& address) override {
    return inner_->Connect(address);
  }
  void Place(PeerId peer,
             TransferToken token,
             std::vector<std::span<std::byte>> destinations) override {
    inner_->Place(peer, token, std::move(destinations));
  }
  void Close(PeerId peer) override { inner_->Close(peer); }
  std::string CarrierOf(PeerId peer) const override { return inner_->CarrierOf(peer); }
  std::vector<PoolReader*> readers() override {
    std::vector<PoolReader*> all;
    for (const std::unique_ptr<FaultyReader>& reader : readers_) {
      all.push_back(reader.get());
    }
    return all;
  }

  absl::Status Read(PoolReader& inner, PeerId peer, PoolRead read) {
    const Fault* fault = NextFault(std::nullopt, /*is_read=*/true);
    if (fault == nullptr) {
      return inner.Read(peer, std::move(read));
    }
    ++log_->injected;
    if (fault->action == FaultAction::kFlip) {
      to_damage_[read.token] = read.ranges.front().destination.data();
      read.copied = nullptr;  // what counts is the damage done after the copy
      return inner.Read(peer, std::move(read));
    }
    if (fault->action == FaultAction::kKill) {
      inner_->Close(peer);
    }
    return absl::UnavailableError("the read was made to fail");
  }

  absl::Status Send(PeerId peer, OutgoingMessage message) override {
    const Fault* fault = NextFault(TypeOf(message.header), /*is_read=*/false);
    ++log_->messages;
    log_->parts += message.payload.size();
    log_->header_bytes += message.header.size();
    if (fault == nullptr) {
      return Forward(peer, std::move(message), 1);
    }
    ++log_->injected;
    switch (fault->action) {
      case FaultAction::kDelay:
        held_.push_back({.peer = peer, .message = std::move(message), .rounds = fault->rounds});
        return absl::OkStatus();
      case FaultAction::kDrop:
        swallowed_.push_back({peer, message.token});
        return absl::OkStatus();
      case FaultAction::kDuplicate:
        return Forward(peer, std::move(message), 2);
      case FaultAction::kTruncate:
        Truncate(message);
        return Forward(peer, std::move(message), 1);
      case FaultAction::kFlip:
        return ForwardFlipped(peer, std::move(message));
      case FaultAction::kKill:
        inner_->Close(peer);
        swallowed_.push_back({peer, message.token});
        return absl::OkStatus();
      case FaultAction::kMute:
        muted_ = true;
        swallowed_.push_back({peer, message.token});
        return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  bool Progress() override {
    bool worked = inner_->Progress();
    const std::deque<std::pair<PeerId, TransferToken>> swallowed = std::exchange(swallowed_, {});
    for (const auto& [peer, token] : swallowed) {
      handler_.OnSent(peer, token, absl::OkStatus());
    }
    std::deque<Held> held = std::exchange(held_, {});
    for (Held& one : held) {
      if (--one.rounds > 0) {
        held_.push_back(std::move(one));
        continue;
      }
      const TransferToken token = one.message.token;
      if (const absl::Status sent = Forward(one.peer, std::move(one.message), 1); !sent.ok()) {
        handler_.OnSent(one.peer, token, sent);
      }
    }
    return worked || !swallowed.empty() || !held.empty();
  }

  std::optional<int> PrepareToSleep() override {
    return swallowed_.empty() && held_.empty() ? inner_->PrepareToSleep() : std::nullopt;
  }

  void OnAccepted(PeerId peer) override { handler_.OnAccepted(peer); }
  void OnHeard(PeerId peer) override { handler_.OnHeard(peer); }
  void OnControl(PeerId peer, std::string_view header) override {
    handler_.OnControl(peer, header);
  }
  ReceivePlan OnData(PeerId peer, std::string_view header, std::size_t payload_bytes) override {
    return handler_.OnData(peer, header, payload_bytes);
  }
  void OnReceived(PeerId peer, TransferToken token, const absl::Status& status) override {
    if (const auto damaged = to_damage_.find(token); damaged != to_damage_.end()) {
      *damaged->second ^= std::byte{0x10};
      to_damage_.erase(damaged);
    }
    handler_.OnReceived(peer, token, status);
  }

  void OnSent(PeerId peer, TransferToken token, const absl::Status& status) override {
    const auto found = under_way_.find(token);
    if (--found->second.copies > 0) {
      return;
    }
    const TransferToken original = found->second.original;
    under_way_.erase(found);
    handler_.OnSent(peer, original, status);
  }

  void OnClosed(PeerId peer, const absl::Status& why) override {
    const auto report = [&](PeerId of, TransferToken token) {
      if (of == peer) {
        handler_.OnSent(peer, token, why);
      }
      return of == peer;
    };
    std::erase_if(swallowed_, [&](const auto& one) { return report(one.first, one.second); });
    std::erase_if(held_, [&](const Held& one) { return report(one.peer, one.message.token); });
    handler_.OnClosed(peer, why);
  }

 private:
  struct Held {
    PeerId peer;
    OutgoingMessage message;
    int rounds = 0;
  };
  struct UnderWay {
    TransferToken original;
    int copies = 1;
    std::vector<std::byte> damaged;  // bytes sent in place of the caller's
  };

  // The first fault that this message or read meets, counting it for all of them.
  const Fault* NextFault(std::optional<wire::MessageType> type, bool is_read) {
    static constexpr Fault kMuted{.action = FaultAction::kDrop};
    const Fault* met = nullptr;
    for (std::size_t i = 0; i < faults_.size(); ++i) {
      const Fault& fault = faults_[i];
      if (fault.of_reads != is_read || (fault.type && fault.type != type)) {
        continue;
      }
      const int number = seen_[i]++;
      if (met == nullptr && number >= fault.first && number < fault.first + fault.count) {
        met = &fault;
      }
    }
    return muted_ && !is_read ? &kMuted : met;
  }

  absl::Status Forward(PeerId peer,
                       OutgoingMessage message,
                       int copies,
                       std::vector<std::byte> damaged = {}) {
    const TransferToken token(next_token_++);
    under_way_[token] = {
        .original = message.token, .copies = copies, .damaged = std::move(damaged)};
    message.token = token;
    for (int copy = 0; copy < copies; ++copy) {
      const TimePoint begin = Clock::System().Now();
      absl::Status sent = inner_->Send(peer, message);
      log_->sending_ns += (Clock::System().Now() - begin).count();
      if (!sent.ok()) {
        // Copies that went out are answered for by OnSent.
        under_way_[token].copies -= copies - copy;
        if (copy == 0) {
          under_way_.erase(token);
          return sent;
        }
        break;
      }
    }
    return absl::OkStatus();
  }

  static void Truncate(OutgoingMessage& message) {
    if (message.payload.empty()) {
      message.header.pop_back();
      return;
    }
    std::span<const std::byte>& last = message.payload.back();
    last = last.first(last.size() - 1);
    if (last.empty()) {
      message.payload.pop_back();
    }
  }

  absl::Status ForwardFlipped(PeerId peer, OutgoingMessage message) {
    if (message.payload.empty()) {
      message.header[message.header.size() / 2] ^= 0x10;
      return Forward(peer, std::move(message), 1);
    }
    std::span<const std::byte>& part = message.payload[message.payload.size() / 2];
    std::vector<std::byte> damaged(part.begin(), part.end());
    damaged[damaged.size() / 2] ^= std::byte{0x10};
    part = damaged;  // moving the vector leaves its bytes where they are
    return Forward(peer, std::move(message), 1, std::move(damaged));
  }

  const std::vector<Fault> faults_;
  const std::shared_ptr<FaultLog> log_;  // shared with the watcher
  std::vector<int> seen_;                // by fault: messages of its type so far
  bool muted_ = false;
  TransportHandler& handler_;
  std::deque<std::pair<PeerId, TransferToken>> swallowed_;  // to be reported as sent
  std::deque<Held> held_;
  absl::flat_hash_map<TransferToken, UnderWay> under_way_;
  std::uint64_t next_token_ = 1;
  absl::flat_hash_map<TransferToken, std::byte*> to_damage_;  // a byte of a read under way
  std::vector<std::unique_ptr<FaultyReader>> readers_;
  std::unique_ptr<Transport> inner_;  // last, so that it goes before the bytes it reads
};

absl::Status FaultyReader::Read(PeerId peer, PoolRead read) {
  return transport_.Read(inner_, peer, std::move(read));
}

}  // namespace

TransportFactory MakeTransport(TransportFactory inner,
                               std::vector<Fault> faults,
                               std::shared_ptr<FaultLog> log) {
  return [inner = std::move(inner), faults = std::move(faults), log = std::move(log)](
             TransportHandler& handler) -> absl::StatusOr<std::unique_ptr<Transport>> {
    auto transport = std::make_unique<FaultyTransport>(faults, log, handler);
    ASSIGN_OR_RETURN(std::unique_ptr<Transport> wrapped, inner(*transport));
    transport->Wrap(std::move(wrapped));
    return transport;
  };
}

}  // namespace baton::faulty
