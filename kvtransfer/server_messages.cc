#include <algorithm>
#include <utility>

#include "common/failpoint.h"
#include "kvtransfer/checksum.h"
#include "kvtransfer/handoff_server.h"

// What a HandoffServer sends, and when.
namespace baton {

using State = PrefillHandoffState;

bool HandoffServer::OnSent(PeerId peer, TransferToken token, const absl::Status& status) {
  const auto found = in_flight_.find(token);
  if (found == in_flight_.end()) {
    return false;
  }
  const InFlight sent = found->second;
  in_flight_.erase(found);
  connections_.DataSent(peer);
  Entry& entry = *offers_.at(sent.handoff);
  --entry.messages_in_flight;
  entry.bytes_in_flight -= sent.bytes;
  if (entry.ended()) {
    FinishIfLetGo(sent.handoff);
  } else if (!status.ok() && connections_.Find(peer) != nullptr) {
    connections_.Close(peer, status);
  } else {
    SayCompleteIfAllSent(entry);
  }
  return true;
}

bool HandoffServer::Pump() {
  // A turn is one message, so that a long prompt does not hold up the others; and between two, what
  // is under way gets on.
  for (std::size_t idle_turns = 0; idle_turns < turns_.size();) {
    const HandoffId id = turns_.front();
    turns_.pop_front();
    Entry* entry = FindOpen(id);
    if (entry == nullptr) {
      continue;
    }
    turns_.push_back(id);
    if (SendNext(*entry)) {
      return true;
    }
    ++idle_turns;
  }
  return false;
}

bool HandoffServer::MaySend(const Entry& entry, const PieceSchedule::Selection& selection) const {
  if (entry.messages_in_flight == 0) {
    return true;
  }
  // While messages are under way and more is being computed, small ones wait to become bigger.
  const bool big_enough = entry.state != State::kComputing ||
                          selection.bytes * 2 >= options_.message_bytes ||
                          selection.blocks.size() == wire::kMaxDataBlocks;
  const std::uint64_t credit =
      std::min<std::uint64_t>(entry.fetch.credit_bytes, options_.credit_bytes);
  return big_enough && entry.bytes_in_flight + selection.bytes <= credit;
}

bool HandoffServer::SendNext(Entry& entry) {
  if (!entry.pieces.has_sendable() || !entry.reader) {
    return false;
  }
  Connection* connection = connections_.Find(*entry.reader);
  if (connection == nullptr || connection->data_in_flight >= options_.messages_in_flight) {
    return false;
  }
  const PieceSchedule::Selection selection = entry.pieces.Select(options_.message_bytes);
  if ((entry.fetch.reads == 0 && !MaySend(entry, selection)) ||
      !HitFailpoint("prefill.hold_pieces").ok()) {
    return false;
  }
  if (entry.fetch.reads != 0) {
    connections_.SendControl(connection->peer, MakeReady(entry, selection));
    CountSent(entry, selection);
    SayCompleteIfAllSent(entry);
    return true;
  }
  OutgoingMessage message = MakeMessage(entry, *connection, selection);
  const TransferToken token = message.token;
  if (!connections_.SendData(*connection, std::move(message)).ok()) {
    return false;  // the connection is lost, and the offer will be unbound
  }
  in_flight_[token] = {.handoff = entry.request.id, .bytes = selection.bytes};
  ++entry.messages_in_flight;
  entry.bytes_in_flight += selection.bytes;
  CountSent(entry, selection);
  return true;
}

void HandoffServer::CountSent(Entry& entry, const PieceSchedule::Selection& selection) {
  entry.pieces.MarkSent(selection);
  ++entry.round_messages;
  entry.round_bytes += selection.bytes;
  ++entry.stats.messages_sent;
  entry.stats.bytes_sent += selection.bytes;
  ++stats_.messages_sent;
  stats_.bytes_sent += selection.bytes;
}

std::span<const std::byte> HandoffServer::PieceOf(const Entry& entry,
                                                  std::uint32_t block,
                                                  LayerRange layers) const {
  const KvLayout& layout = options_.pool.layout;
  return {options_.pool.base + entry.request.blocks[block].value() * layout.block_bytes() +
              static_cast<std::size_t>(layers.first) * layout.layer_bytes,
          static_cast<std::size_t>(layers.count) * layout.layer_bytes};
}

wire::Ready HandoffServer::MakeReady(const Entry& entry,
                                     const PieceSchedule::Selection& selection) const {
  wire::Ready ready{.handoff = entry.request.id,
                    .epoch = entry.request.epoch,
                    .round = entry.fetch.round,
                    .sequence = entry.round_messages,
                    .first_layer = static_cast<std::uint16_t>(selection.layers.first),
                    .layer_count = static_cast<std::uint16_t>(selection.layers.count)};
  std::vector<std::span<const std::byte>> pieces;
  for (const std::uint32_t block : selection.blocks) {
    pieces.push_back(PieceOf(entry, block, selection.layers));
    ready.blocks.push_back({.source = block, .place = entry.request.blocks[block].value()});
  }
  if (options_.checksums) {
    ready.crc32c = Checksum(pieces) ^ (HitFailpoint("prefill.damage_piece").ok() ? 0 : 1);
  }
  return ready;
}

OutgoingMessage HandoffServer::MakeMessage(const Entry& entry,
                                           const Connection& connection,
                                           const PieceSchedule::Selection& selection) {
  OutgoingMessage message;
  message.payload.reserve(selection.blocks.size());
  for (const std::uint32_t block : selection.blocks) {
    AppendPart(message.payload, PieceOf(entry, block, selection.layers));
  }
  wire::Data data{.handoff = entry.request.id,
                  .epoch = entry.request.epoch,
                  .round = entry.fetch.round,
                  .sequence = entry.round_messages,
                  .first_layer = static_cast<std::uint16_t>(selection.layers.first),
                  .layer_count = static_cast<std::uint16_t>(selection.layers.count),
                  .blocks = selection.blocks};
  if (options_.pool.kind == MemoryKind::kHost) {
    const bool damage = !HitFailpoint("prefill.damage_piece").ok();
    message.send_checksum =
        options_.checksums && !damage && connections_.SendsChecksums(connection, selection.bytes);
    if (message.send_checksum) {
      data.checksum_follows = 1;
    } else if (options_.checksums) {
      // Damaged, it is to the other side as if a byte had changed on the way.
      data.crc32c = Checksum(message.payload) ^ (damage ? 1 : 0);
    }
    message.header = wire::Encode(data);
  } else {
    message.seal = [data = std::move(data)](ConstParts payload) mutable {
      data.crc32c = Checksum(payload);
      return wire::Encode(data);
    };
  }
  message.token = TransferToken(next_token_);
  next_token_ += 2;
  return message;
}

void HandoffServer::SayCompleteIfAllSent(Entry& entry) {
  if (entry.state != State::kServing || !entry.reader || entry.complete_said ||
      !entry.pieces.all_sent() || entry.messages_in_flight > 0) {
    return;
  }
  entry.complete_said = true;
  MustMove(entry.state, State::kServed);
  SayComplete(entry);
}

void HandoffServer::SayComplete(Entry& entry) {
  entry.say_again = Now() + options_.times.heartbeat;
  connections_.SendControl(*entry.reader, wire::Complete{.handoff = entry.request.id,
                                                         .epoch = entry.request.epoch,
                                                         .round = entry.fetch.round,
                                                         .messages = entry.round_messages,
                                                         .bytes = entry.round_bytes});
}

void HandoffServer::SayError(PeerId peer,
                             HandoffId id,
                             std::uint64_t epoch,
                             const absl::Status& why) {
  connections_.SendControl(
      peer, wire::Error{.handoff = id,
                        .epoch = epoch,
                        .code = static_cast<std::uint16_t>(why.code()),
                        .text = std::string(why.message()).substr(0, wire::kMaxErrorText)});
}

}  // namespace baton
