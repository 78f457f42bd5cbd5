#include "kvtransfer/staged/staged_transport.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kvtransfer/staged/message_copies.h"
#include "kvtransfer/staged/slot_ring.h"

namespace baton::staged {
namespace {

template <typename Byte>
std::size_t BytesOf(const std::vector<std::span<Byte>>& parts) {
  std::size_t bytes = 0;
  for (const std::span<Byte> part : parts) {
    bytes += part.size();
  }
  return bytes;
}

// Sits between a transport and its handler, as a handler of the first and a transport to the
// second. Messages have tokens of its own below, so that those of both kinds never meet.
//
// Not thread-safe: used only by the transfer thread.
class StagedTransport final : public Transport, public TransportHandler {
 public:
  StagedTransport(std::unique_ptr<StagingCopier> copier,
                  std::span<std::byte> memory,
                  const StagingOptions& options,
                  std::shared_ptr<StagingStats> stats,
                  TransportHandler& handler)
      : handler_(handler),
        stats_(std::move(stats)),
        copier_(std::move(copier)),
        copies_(*copier_),
        send_slots_(memory.first(options.slot_bytes * static_cast<std::size_t>(options.send_slots)),
                    options.slot_bytes,
                    stats_->free_send_slots),
        receive_slots_(
            memory.last(options.slot_bytes * static_cast<std::size_t>(options.receive_slots)),
            options.slot_bytes,
            stats_->free_receive_slots) {}

  void Wrap(std::unique_ptr<Transport> inner) { inner_ = std::move(inner); }

  std::string address() const override { return inner_->address(); }
  bool Streaming() const override { return inner_->Streaming(); }
  std::string CarrierOf(PeerId peer) const override { return inner_->CarrierOf(peer); }
  absl::Status RegisterRegion(const MemoryRegion& region) override;
  absl::StatusOr<PeerId> Connect(const std::string& address) override;
  absl::Status Send(PeerId peer, OutgoingMessage message) override;
  void Place(PeerId peer,
             TransferToken token,
             std::vector<std::span<std::byte>> destinations) override;
  void Close(PeerId peer) override;
  bool Progress() override;
  std::optional<int> PrepareToSleep() override;

  void OnAccepted(PeerId peer) override;
  void OnHeard(PeerId peer) override { handler_.OnHeard(peer); }
  void OnControl(PeerId peer, std::string_view header) override {
    handler_.OnControl(peer, header);
  }
  ReceivePlan OnData(PeerId peer, std::string_view header, std::size_t payload_bytes) override;
  void OnReceived(PeerId peer, TransferToken token, const absl::Status& status) override;
  void OnSent(PeerId peer, TransferToken token, const absl::Status& status) override;
  void OnClosed(PeerId peer, const absl::Status& why) override;

 private:
  struct Peer {
    bool open = true;
    int copying = 0;      // messages with copies under way
    bool closed = false;  // the inner transport has said so, and why
    absl::Status why = absl::CancelledError("closed here");
  };
  // What the handler waits for, with slots while it is staged.
  struct Outgoing {
    PeerId peer;
    OutgoingMessage message;  // the handler's
    std::size_t bytes = 0;
    std::vector<std::span<std::byte>> slots;
  };
  struct Incoming {
    PeerId peer;
    ReceivePlan plan;  // the handler's
    std::size_t bytes = 0;
    std::vector<std::span<std::byte>> slots;
  };

  template <typename Byte>
  bool IsDevice(std::span<Byte> part) const {
    return std::any_of(device_regions_.begin(), device_regions_.end(), [&](const auto& region) {
      return part.data() >= region.base && part.data() < region.base + region.size_bytes;
    });
  }

  bool HandleCopied();
  bool StartSends();
  bool PlaceWaiting();
  void SendFromSlots(TransferToken token, const absl::Status& copied);
  void EndSend(TransferToken token, const absl::Status& status);
  void EndReceive(TransferToken token, const absl::Status& status);
  void ReportClosedIfCopied(PeerId peer);
  void Publish();

  TransportHandler& handler_;
  const std::shared_ptr<StagingStats> stats_;  // shared with the watcher
  std::vector<MemoryRegion> device_regions_;
  std::unique_ptr<StagingCopier> copier_;  // goes after the transport: owns the slots it reads
  MessageCopies copies_;
  SlotRing send_slots_;
  SlotRing receive_slots_;
  std::uint64_t next_token_ = 1;
  absl::flat_hash_map<PeerId, Peer> peers_;
  // By token of our own.
  absl::flat_hash_map<TransferToken, Outgoing> sends_;
  absl::flat_hash_map<TransferToken, Incoming> receives_;
  std::deque<TransferToken> send_line_;     // sends without slots yet
  std::deque<TransferToken> receive_line_;  // receives without slots yet
  std::unique_ptr<Transport> inner_;        // last, so that it goes first
};

absl::Status StagedTransport::RegisterRegion(const MemoryRegion& region) {
  if (region.kind == MemoryKind::kHost) {
    return inner_->RegisterRegion(region);
  }
  device_regions_.push_back(region);
  return absl::OkStatus();
}

absl::StatusOr<PeerId> StagedTransport::Connect(const std::string& address) {
  ASSIGN_OR_RETURN(const PeerId peer, inner_->Connect(address));
  peers_.try_emplace(peer);
  return peer;
}

absl::Status StagedTransport::Send(PeerId peer, OutgoingMessage message) {
  const TransferToken token(next_token_++);
  const auto on_device =
      std::count_if(message.payload.begin(), message.payload.end(),
                    [this](std::span<const std::byte> part) { return IsDevice(part); });
  if (on_device == 0) {
    Outgoing passed{.peer = peer, .message = {.token = message.token}};
    message.token = token;
    RETURN_IF_ERROR(inner_->Send(peer, std::move(message)));
    sends_[token] = std::move(passed);
    return absl::OkStatus();
  }
  const std::size_t bytes = BytesOf(message.payload);
  if (on_device != std::ssize(message.payload) || !send_slots_.Fits(bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot stage a message of ", bytes, " bytes, ",
                                                   on_device, " of ", message.payload.size(),
                                                   " parts in device memory"));
  }
  const auto found = peers_.find(peer);
  if (found == peers_.end() || !found->second.open) {
    return absl::UnavailableError("connection is closed");
  }
  sends_[token] = {.peer = peer, .message = std::move(message), .bytes = bytes};
  send_line_.push_back(token);
  return absl::OkStatus();
}

void StagedTransport::Place(PeerId peer,
                            TransferToken token,
                            std::vector<std::span<std::byte>> destinations) {
  const auto found = std::find_if(receives_.begin(), receives_.end(), [&](const auto& receive) {
    return receive.second.peer == peer && receive.second.plan.token == token;
  });
  if (found == receives_.end()) {
    return;
  }
  if (destinations.empty() || !IsDevice(destinations.front())) {
    inner_->Place(peer, found->first, std::move(destinations));
  } else if (receive_slots_.Fits(found->second.bytes)) {
    found->second.plan.destinations = std::move(destinations);
    receive_line_.push_back(found->first);
  } else {
    Close(peer);  // answers for it
  }
}

void StagedTransport::Close(PeerId peer) {
  if (const auto found = peers_.find(peer); found != peers_.end()) {
    found->second.open = false;
  }
  inner_->Close(peer);
}

bool StagedTransport::Progress() {
  bool worked = inner_->Progress();
  worked = HandleCopied() || worked;
  worked = StartSends() || worked;
  worked = PlaceWaiting() || worked;
  Publish();
  return worked;
}

std::optional<int> StagedTransport::PrepareToSleep() {
  // Copies take tens of microseconds and wake nobody; asking for them again costs less than a
  // sleep. What waits for slots waits for a copy or for the inner transport.
  const bool idle =
      copies_.empty() &&
      (send_line_.empty() || !send_slots_.HasRoomFor(sends_.at(send_line_.front()).bytes));
  return idle ? inner_->PrepareToSleep() : std::nullopt;
}

void StagedTransport::OnAccepted(PeerId peer) {
  peers_.try_emplace(peer);
  handler_.OnAccepted(peer);
}

ReceivePlan StagedTransport::OnData(PeerId peer,
                                    std::string_view header,
                                    std::size_t payload_bytes) {
  ReceivePlan plan = handler_.OnData(peer, header, payload_bytes);
  if (!plan.accept) {
    return plan;
  }
  const TransferToken token(next_token_++);
  ReceivePlan inner{.accept = true, .later = plan.later, .token = token, .copied = plan.copied};
  const bool staged = !plan.destinations.empty() && IsDevice(plan.destinations.front());
  if (!staged) {
    inner.destinations = std::move(plan.destinations);
    inner.verify = std::move(plan.verify);
  }
  Incoming& incoming = receives_[token];
  incoming = {.peer = peer, .plan = std::move(plan), .bytes = payload_bytes};
  if (!staged) {
    return inner;
  }
  if (!receive_slots_.Fits(payload_bytes)) {
    LogEvent(LogLevel::kWarn, "staging.message_too_long", {{"bytes", payload_bytes}});
    EndReceive(token, absl::ResourceExhaustedError("message longer than the receive slots"));
    return {};
  }
  if (receive_line_.empty()) {
    incoming.slots = receive_slots_.Take(payload_bytes);
  }
  inner.destinations = incoming.slots;
  if (inner.destinations.empty()) {
    inner.later = true;
    receive_line_.push_back(token);
  }
  return inner;
}

void StagedTransport::OnReceived(PeerId peer, TransferToken token, const absl::Status& status) {
  const Incoming& incoming = receives_.at(token);
  if (incoming.slots.empty() || !status.ok()) {
    std::erase(receive_line_, token);
    EndReceive(token, status);
    return;
  }
  const std::vector<std::span<const std::byte>> payload(incoming.slots.begin(),
                                                        incoming.slots.end());
  if (incoming.plan.verify && !incoming.plan.verify(payload)) {
    EndReceive(token, absl::DataLossError("the payload is not what was sent"));
  } else if (!peers_.at(peer).open) {
    EndReceive(token, absl::CancelledError("closed here"));
  } else {
    ++peers_.at(peer).copying;
    copies_.ToDevice(token, incoming.slots, incoming.plan.destinations);
  }
}

void StagedTransport::OnSent(PeerId, TransferToken token, const absl::Status& status) {
  EndSend(token, status);
}

void StagedTransport::OnClosed(PeerId peer, const absl::Status& why) {
  Peer& closed = peers_.at(peer);
  closed.open = false;
  closed.closed = true;
  closed.why = why;
  // The inner transport has never heard of what still waits.
  std::vector<TransferToken> waiting;
  std::erase_if(send_line_, [&](TransferToken token) {
    const bool of_peer = sends_.at(token).peer == peer;
    if (of_peer) {
      waiting.push_back(token);
    }
    return of_peer;
  });
  for (const TransferToken token : waiting) {
    EndSend(token, why);
  }
  ReportClosedIfCopied(peer);
}

bool StagedTransport::HandleCopied() {
  const std::vector<MessageCopies::End> ends = copies_.TakeEnds();
  for (const MessageCopies::End& end : ends) {
    const PeerId peer = end.to_device ? receives_.at(end.token).peer : sends_.at(end.token).peer;
    --peers_.at(peer).copying;
    if (end.to_device) {
      EndReceive(end.token, end.status);
    } else {
      SendFromSlots(end.token, end.status);
    }
    ReportClosedIfCopied(peer);
  }
  return !ends.empty();
}

bool StagedTransport::StartSends() {
  bool any = false;
  while (!send_line_.empty()) {
    const TransferToken token = send_line_.front();
    Outgoing& outgoing = sends_.at(token);
    if (peers_.at(outgoing.peer).open) {
      outgoing.slots = send_slots_.Take(outgoing.bytes);
      if (outgoing.slots.empty()) {
        break;
      }
      send_line_.pop_front();
      ++peers_.at(outgoing.peer).copying;
      copies_.ToHost(token, outgoing.message.payload, outgoing.slots);
    } else {
      send_line_.pop_front();
      EndSend(token, absl::CancelledError("closed here"));
    }
    any = true;
  }
  return any;
}

bool StagedTransport::PlaceWaiting() {
  bool any = false;
  while (!receive_line_.empty()) {
    const TransferToken token = receive_line_.front();
    Incoming& incoming = receives_.at(token);
    incoming.slots = receive_slots_.Take(incoming.bytes);
    if (incoming.slots.empty()) {
      break;
    }
    receive_line_.pop_front();
    inner_->Place(incoming.peer, token, incoming.slots);
    any = true;
  }
  return any;
}

void StagedTransport::SendFromSlots(TransferToken token, const absl::Status& copied) {
  Outgoing& outgoing = sends_.at(token);
  const Peer& peer = peers_.at(outgoing.peer);
  absl::Status status = copied;
  if (status.ok() && !peer.open) {
    status = peer.why;
  }
  if (status.ok()) {
    OutgoingMessage inner{.header = std::move(outgoing.message.header), .token = token};
    inner.payload.assign(outgoing.slots.begin(), outgoing.slots.end());
    if (outgoing.message.seal) {
      inner.header = outgoing.message.seal(inner.payload);
    }
    status = inner_->Send(outgoing.peer, std::move(inner));
  }
  if (!status.ok()) {
    EndSend(token, status);
  }
}

void StagedTransport::EndSend(TransferToken token, const absl::Status& status) {
  const auto found = sends_.find(token);
  Outgoing outgoing = std::move(found->second);
  sends_.erase(found);
  send_slots_.Return(outgoing.slots);
  handler_.OnSent(outgoing.peer, outgoing.message.token, status);
}

void StagedTransport::EndReceive(TransferToken token, const absl::Status& status) {
  const auto found = receives_.find(token);
  Incoming incoming = std::move(found->second);
  receives_.erase(found);
  receive_slots_.Return(incoming.slots);
  handler_.OnReceived(incoming.peer, incoming.plan.token, status);
}

void StagedTransport::ReportClosedIfCopied(PeerId peer) {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || !found->second.closed || found->second.copying > 0) {
    return;
  }
  const absl::Status why = found->second.why;
  peers_.erase(found);
  handler_.OnClosed(peer, why);
}

void StagedTransport::Publish() {
  stats_->waiting.store(static_cast<int>(send_line_.size() + receive_line_.size()),
                        std::memory_order_relaxed);
  stats_->copying.store(copies_.copies(), std::memory_order_relaxed);
}

}  // namespace

TransportFactory MakeTransport(TransportFactory inner,
                               StagingCopierFactory copier,
                               StagingOptions options,
                               std::shared_ptr<StagingStats> stats) {
  return [inner = std::move(inner), copier = std::move(copier), options, stats = std::move(stats)](
             TransportHandler& handler) -> absl::StatusOr<std::unique_ptr<Transport>> {
    if (options.slot_bytes == 0 || options.send_slots <= 0 || options.receive_slots <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("staging needs slots: ", options.send_slots, " to send and ",
                       options.receive_slots, " to receive, of ", options.slot_bytes, " bytes"));
    }
    ASSIGN_OR_RETURN(std::unique_ptr<StagingCopier> made, copier());
    const auto slots = static_cast<std::size_t>(options.send_slots + options.receive_slots);
    ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                     made->AllocatePinned(options.slot_bytes * slots));
    auto transport =
        std::make_unique<StagedTransport>(std::move(made), memory, options, stats, handler);
    ASSIGN_OR_RETURN(std::unique_ptr<Transport> wrapped, inner(*transport));
    transport->Wrap(std::move(wrapped));
    RETURN_IF_ERROR(transport->RegisterRegion(
        {.base = memory.data(), .size_bytes = memory.size(), .kind = MemoryKind::kHost}));
    return transport;
  };
}

}  // namespace baton::staged
