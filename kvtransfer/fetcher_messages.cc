#include <utility>

#include "common/log.h"
#include "kvtransfer/checksum.h"
#include "kvtransfer/handoff_fetcher.h"

// What a HandoffFetcher makes of messages from peers and of what its transport says of them.
namespace baton {

using State = DecodeHandoffState;

ReceivePlan HandoffFetcher::OnData(const Connection& connection,
                                   const wire::Data& data,
                                   std::size_t payload_bytes,
                                   std::optional<DropReason>& dropped) {
  Entry* entry = FindOpen(data.handoff);
  if (entry == nullptr) {
    dropped = DropReason::kUnknownHandoff;
    return {};
  }
  PieceRange pieces{.layers = {data.first_layer, data.layer_count}, .blocks = data.blocks};
  dropped = CheckSender(*entry, connection, data.epoch);
  if (!dropped && entry->reader() != nullptr) {
    dropped = DropReason::kUnexpected;
  }
  if (!dropped) {
    dropped = CheckPieces(*entry, data.round, pieces);
  }
  if (!dropped && payload_bytes != entry->pieces.BytesOf(pieces)) {
    dropped = DropReason::kBadLength;
  }
  if (!dropped && entry->pieces.IsHere(pieces)) {
    dropped = DropReason::kReplayed;
  }
  if (dropped) {
    return {};
  }
  ReceivePlan plan{.accept = true};
  plan.destinations.reserve(pieces.blocks.size());
  for (const std::uint32_t block : pieces.blocks) {
    AppendPart(plan.destinations, entry->pieces.Destination(block, pieces.layers));
  }
  if (options_.checksums) {
    plan.copied = std::make_shared<CopiedChecksum>();
  }
  plan.token = BeginReceive(*entry, {.handoff = data.handoff,
                                     .pieces = std::move(pieces),
                                     .crc32c = data.crc32c,
                                     .checksum_follows = data.checksum_follows != 0,
                                     .copied = plan.copied});
  if (options_.pool.kind != MemoryKind::kHost) {
    plan.verify = [this, token = plan.token](ConstParts payload) { return Verify(token, payload); };
  }
  return plan;
}

std::optional<DropReason> HandoffFetcher::OnReady(const Connection& connection,
                                                  const wire::Ready& ready) {
  Entry* entry = FindOpen(ready.handoff);
  if (entry == nullptr) {
    return DropReason::kUnknownHandoff;
  }
  if (const auto refused = CheckSender(*entry, connection, ready.epoch)) {
    return refused;
  }
  PoolReader* const reader = entry->reader();
  if (reader == nullptr) {
    return DropReason::kUnexpected;
  }
  PieceRange pieces{.layers = {ready.first_layer, ready.layer_count}};
  for (const wire::PlacedBlock& block : ready.blocks) {
    pieces.blocks.push_back(block.source);
    if (block.place >= connection.pool_blocks) {
      return DropReason::kBadBlocks;
    }
  }
  if (const auto refused = CheckPieces(*entry, ready.round, pieces)) {
    return refused;
  }
  if (entry->pieces.IsHere(pieces)) {
    return DropReason::kReplayed;
  }

  const KvLayout& layout = options_.pool.layout;
  PoolRead read;
  for (const wire::PlacedBlock& block : ready.blocks) {
    const PoolRange range{.offset = std::uint64_t{block.place} * layout.block_bytes() +
                                    std::uint64_t{ready.first_layer} * layout.layer_bytes,
                          .destination = entry->pieces.Destination(block.source, pieces.layers)};
    PoolRange* last = read.ranges.empty() ? nullptr : &read.ranges.back();
    if (last != nullptr && last->offset + last->destination.size() == range.offset &&
        last->destination.data() + last->destination.size() == range.destination.data()) {
      last->destination = {last->destination.data(),
                           last->destination.size() + range.destination.size()};
    } else {
      read.ranges.push_back(range);
    }
  }
  if (options_.pool.kind == MemoryKind::kHost && options_.checksums) {
    read.copied = std::make_shared<CopiedChecksum>();
  }
  const TransferToken token = BeginReceive(*entry, {.handoff = ready.handoff,
                                                    .pieces = std::move(pieces),
                                                    .crc32c = ready.crc32c,
                                                    .copied = read.copied});
  read.token = token;
  if (const absl::Status status = reader->Read(connection.peer, std::move(read)); !status.ok()) {
    OnReceived(token, status);
  }
  return std::nullopt;
}

std::optional<DropReason> HandoffFetcher::OnComplete(const Connection& connection,
                                                     const wire::Complete& complete) {
  Entry* entry = FindOpen(complete.handoff);
  if (entry == nullptr) {
    return WhyUnknown(complete.handoff);
  }
  if (const auto refused = CheckSender(*entry, connection, complete.epoch)) {
    return refused;
  }
  if (complete.round > entry->round) {
    return DropReason::kUnexpected;
  }
  if (complete.round < entry->round || entry->pieces.all_landed()) {
    return std::nullopt;  // said again before our next word was heard
  }
  entry->all_said = true;
  if (entry->receives == 0) {
    AskAgainOrMove(*entry);
  }
  return std::nullopt;
}

std::optional<DropReason> HandoffFetcher::OnReleased(const Connection& connection,
                                                     const wire::Released& released) {
  Entry* entry = FindOpen(released.handoff);
  if (entry == nullptr) {
    return WhyUnknown(released.handoff);
  }
  if (const auto refused = CheckSender(*entry, connection, released.epoch)) {
    return refused;
  }
  if (!entry->pieces.all_landed() || entry->reader() == nullptr) {
    return DropReason::kUnexpected;
  }
  Land(*entry);
  return std::nullopt;
}

std::optional<DropReason> HandoffFetcher::OnError(const Connection& connection,
                                                  const wire::Error& error) {
  Entry* entry = FindOpen(error.handoff);
  if (entry == nullptr) {
    return WhyUnknown(error.handoff);
  }
  if (const auto refused = CheckSender(*entry, connection, error.epoch)) {
    return refused;
  }
  // After a move the other address may only repeat that it is over: why it was moved says more.
  entry->first_failure.Update(wire::ToStatus(error));
  Fail(*entry, entry->first_failure);
  return std::nullopt;
}

void HandoffFetcher::OnReceived(TransferToken token, const absl::Status& status) {
  const auto found = receives_.find(token);
  if (found == receives_.end()) {
    return;
  }
  const Receive receive = std::move(found->second);
  receives_.erase(found);
  Entry& entry = *fetches_.at(receive.handoff);
  --entry.receives;
  --stats_.receiving;
  if (entry.receives == 0) {
    entry.stats.receiving += Now() - entry.receiving_since;
  }
  if (entry.ended()) {
    ForgetIfLetGo(receive.handoff);
    return;
  }
  const PieceRange& pieces = receive.pieces;
  const bool intact =
      status.ok() &&
      (options_.pool.kind == MemoryKind::kHost ? ChecksumHolds(entry, receive) : receive.verified);
  if (!intact && (status.ok() || absl::IsDataLoss(status))) {
    entry.checksum_failed = true;
    ++stats_.dropped[static_cast<std::size_t>(DropReason::kChecksum)];
    LogEvent(LogLevel::kWarn, "handoff.checksum_mismatch",
             {{"handoff", receive.handoff.ToString()}, {"first_layer", pieces.layers.first}});
  }
  entry.pieces.Finish(pieces, intact);
  if (intact) {
    const std::size_t bytes = entry.pieces.BytesOf(pieces);
    entry.stats.bytes += bytes;
    ++entry.stats.messages;
    stats_.bytes_received += bytes;
    ++stats_.messages_received;
  }
  if (entry.moving) {
    MoveNow(entry);
  } else if (entry.pieces.all_landed()) {
    LandOrConfirm(entry);
  } else if (!status.ok() && entry.reader() != nullptr) {
    Move(entry, status);
  } else if (entry.all_said && entry.receives == 0) {
    AskAgainOrMove(entry);
  }
}

// What crosses with our own last word is no surprise.
std::optional<DropReason> HandoffFetcher::WhyUnknown(HandoffId id) const {
  return over_.Contains(id) ? std::nullopt : std::optional(DropReason::kUnknownHandoff);
}

std::optional<DropReason> HandoffFetcher::CheckSender(const Entry& entry,
                                                      const Connection& connection,
                                                      std::uint64_t epoch) const {
  if (epoch != entry.request.epoch) {
    return DropReason::kWrongEpoch;
  }
  if (entry.source != connection.peer || connection.instance != entry.request.peer) {
    return DropReason::kWrongPeer;
  }
  return std::nullopt;
}

std::optional<DropReason> HandoffFetcher::CheckPieces(const Entry& entry,
                                                      std::uint32_t round,
                                                      const PieceRange& pieces) {
  if (round != entry.round || entry.moving) {
    return round < entry.round || entry.moving ? DropReason::kReplayed : DropReason::kUnexpected;
  }
  return entry.pieces.Check(pieces);
}

// From here on the transport knows the pieces' memory, until OnReceived.
TransferToken HandoffFetcher::BeginReceive(Entry& entry, Receive receive) {
  if (entry.state == State::kRequested) {
    MustMove(entry.state, State::kFetching);
    entry.stats.first_byte = Now();
  }
  entry.pieces.Begin(receive.pieces);
  if (entry.receives == 0) {
    entry.receiving_since = Now();
  }
  ++entry.receives;
  ++stats_.receiving;
  const TransferToken token(next_token_);
  next_token_ += 2;
  receives_[token] = std::move(receive);
  return token;
}

bool HandoffFetcher::ChecksumHolds(const Entry& entry, const Receive& receive) const {
  std::vector<std::span<const std::byte>> parts;
  for (const std::uint32_t block : receive.pieces.blocks) {
    parts.push_back(entry.pieces.Destination(block, receive.pieces.layers));
  }
  return Matches(receive, parts);
}

bool HandoffFetcher::Verify(TransferToken token, ConstParts payload) {
  const auto found = receives_.find(token);
  if (found == receives_.end()) {
    return false;
  }
  found->second.verified = Matches(found->second, payload);
  return found->second.verified;
}

bool HandoffFetcher::Matches(const Receive& receive, ConstParts payload) const {
  if (!options_.checksums) {
    return true;
  }
  const CopiedChecksum* const copied = receive.copied.get();
  std::uint32_t expected = receive.crc32c;
  if (receive.checksum_follows) {
    if (copied == nullptr || !copied->sent) {
      return false;
    }
    expected = *copied->sent;
  }
  std::size_t bytes = 0;
  for (const std::span<const std::byte> part : payload) {
    bytes += part.size();
  }
  const bool taken = copied != nullptr && copied->bytes == bytes;
  return expected == (taken ? copied->crc32c : Checksum(payload));
}

}  // namespace baton
