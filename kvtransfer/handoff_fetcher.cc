#include "kvtransfer/handoff_fetcher.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/crc32c.h"
#include "common/failpoint.h"
#include "common/log.h"
#include "kvtransfer/checksum.h"

namespace baton {
namespace {

using State = DecodeHandoffState;

constexpr std::uint32_t kMaxRounds = 2;

void MustMove(State& state, State next) {
  // The callers below have checked that the step is legal.
  const absl::Status moved = Transition(state, next);
  if (!moved.ok()) {
    LogEvent(LogLevel::kError, "handoff.illegal_transition", {{"why", moved}});
  }
}

}  // namespace

HandoffFetcher::HandoffFetcher(const TransferOptions& options,
                               ConnectionTable& connections,
                               const Transport& transport,
                               TransferStats& stats)
    : options_(options), connections_(connections), transport_(transport), stats_(stats) {}

void HandoffFetcher::Start(FetchRequest request) {
  const HandoffId id = request.id;
  if (fetches_.contains(id)) {
    request.pin.reset();
    request.sink->OnFailed(
        id, absl::AlreadyExistsError(absl::StrCat("handoff ", id.ToString(), " is open")), {});
    return;
  }
  auto owned = std::make_unique<Entry>();
  Entry& entry = *owned;
  entry.request = std::move(request);
  // Ascending source indices make short lists of runs for the fetch.
  std::sort(
      entry.request.blocks.begin(), entry.request.blocks.end(),
      [](const BlockMapping& a, const BlockMapping& b) { return a.source_index < b.source_index; });
  const std::size_t blocks = entry.request.blocks.size();
  for (std::size_t i = 0; i < blocks; ++i) {
    entry.position[static_cast<std::uint32_t>(entry.request.blocks[i].source_index)] = i;
  }
  entry.landed.resize(blocks);
  entry.arriving.resize(blocks);
  entry.missing_pieces = static_cast<int>(blocks) * options_.pool.layout.layers;
  fetches_[id] = std::move(owned);
  ++stats_.fetches;

  if (Now() >= entry.request.deadline) {
    Fail(entry, absl::DeadlineExceededError("fetch not finished by its deadline"));
    return;
  }
  absl::StatusOr<std::vector<Route>> routes =
      ChooseRoutes(options_.transport, entry.request.address);
  if (!routes.ok()) {
    Fail(entry, routes.status());
    return;
  }
  entry.routes = *std::move(routes);
  TakeRoute(entry, options_.times.connect);
}

void HandoffFetcher::Cancel(HandoffId id) {
  if (Entry* entry = FindOpen(id)) {
    Fail(*entry, absl::CancelledError("fetch cancelled"));
  }
}

ReceivePlan HandoffFetcher::OnData(const Connection& connection,
                                   const wire::Data& data,
                                   std::size_t payload_bytes,
                                   std::optional<DropReason>& dropped) {
  Entry* entry = FindOpen(data.handoff);
  if (entry == nullptr) {
    dropped = DropReason::kUnknownHandoff;
    return {};
  }
  Pieces pieces{.round = data.round,
                .layers = {data.first_layer, data.layer_count},
                .crc32c = data.crc32c,
                .checksum_follows = data.checksum_follows != 0,
                .blocks = data.blocks};
  dropped = CheckSender(*entry, connection, data.epoch);
  if (!dropped && entry->reader() != nullptr) {
    dropped = DropReason::kUnexpected;
  }
  if (!dropped) {
    dropped = CheckPieces(*entry, pieces);
  }
  if (!dropped && payload_bytes != PieceBytes(pieces)) {
    dropped = DropReason::kBadLength;
  }
  if (!dropped) {
    dropped = CheckNotHere(*entry, pieces);
  }
  if (dropped) {
    return {};
  }
  ReceivePlan plan{.accept = true};
  plan.destinations.reserve(pieces.blocks.size());
  for (const std::uint32_t block : pieces.blocks) {
    plan.destinations.push_back(Piece(*entry, block, pieces.layers));
  }
  plan.token = BeginReceive(*entry, std::move(pieces));
  if (options_.checksums) {
    plan.copied = receives_.at(plan.token).copied = std::make_shared<CopiedChecksum>();
  }
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
  Pieces pieces{.round = ready.round,
                .layers = {ready.first_layer, ready.layer_count},
                .crc32c = ready.crc32c};
  for (const wire::PlacedBlock& block : ready.blocks) {
    pieces.blocks.push_back(block.source);
    if (block.place >= connection.pool_blocks) {
      return DropReason::kBadBlocks;
    }
  }
  if (const auto refused = CheckPieces(*entry, pieces)) {
    return refused;
  }
  if (const auto refused = CheckNotHere(*entry, pieces)) {
    return refused;
  }

  const KvLayout& layout = options_.pool.layout;
  PoolRead read;
  for (const wire::PlacedBlock& block : ready.blocks) {
    const PoolRange range{.offset = std::uint64_t{block.place} * layout.block_bytes() +
                                    std::uint64_t{ready.first_layer} * layout.layer_bytes,
                          .destination = Piece(*entry, block.source, pieces.layers)};
    PoolRange* last = read.ranges.empty() ? nullptr : &read.ranges.back();
    if (last != nullptr && last->offset + last->destination.size() == range.offset &&
        last->destination.data() + last->destination.size() == range.destination.data()) {
      last->destination = {last->destination.data(),
                           last->destination.size() + range.destination.size()};
    } else {
      read.ranges.push_back(range);
    }
  }
  const TransferToken token = BeginReceive(*entry, std::move(pieces));
  read.token = token;
  if (options_.pool.kind == MemoryKind::kHost && options_.checksums) {
    read.copied = receives_.at(token).copied = std::make_shared<CopiedChecksum>();
  }
  if (const absl::Status status = reader->Read(connection.peer, std::move(read)); !status.ok()) {
    OnReceived(token, status);
  }
  return std::nullopt;
}

std::optional<DropReason> HandoffFetcher::OnComplete(const Connection& connection,
                                                     const wire::Complete& complete) {
  Entry* entry = FindOpen(complete.handoff);
  if (entry == nullptr) {
    return DropReason::kUnknownHandoff;
  }
  if (const auto refused = CheckSender(*entry, connection, complete.epoch)) {
    return refused;
  }
  if (complete.round != entry->round || entry->missing_pieces == 0) {
    return DropReason::kReplayed;
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
    return DropReason::kUnknownHandoff;
  }
  if (const auto refused = CheckSender(*entry, connection, released.epoch)) {
    return refused;
  }
  if (entry->missing_pieces > 0 || entry->reader() == nullptr) {
    return DropReason::kUnexpected;
  }
  Land(*entry);
  return std::nullopt;
}

std::optional<DropReason> HandoffFetcher::OnError(const Connection& connection,
                                                  const wire::Error& error) {
  Entry* entry = FindOpen(error.handoff);
  if (entry == nullptr) {
    return DropReason::kUnknownHandoff;
  }
  if (const auto refused = CheckSender(*entry, connection, error.epoch)) {
    return refused;
  }
  Fail(*entry, wire::ToStatus(error));
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
  if (entry.ended()) {
    ForgetIfLetGo(receive.handoff);
    return;
  }
  const Pieces& pieces = receive.pieces;
  const LayerSet layers(pieces.layers);
  const bool intact =
      status.ok() &&
      (options_.pool.kind == MemoryKind::kHost ? ChecksumHolds(entry, receive) : receive.verified);
  if (!intact && (status.ok() || absl::IsDataLoss(status))) {
    entry.checksum_failed = true;
    ++stats_.dropped[static_cast<std::size_t>(DropReason::kChecksum)];
    LogEvent(LogLevel::kWarn, "handoff.checksum_mismatch",
             {{"handoff", receive.handoff.ToString()}, {"first_layer", pieces.layers.first}});
  }
  for (const std::uint32_t block : pieces.blocks) {
    const std::size_t i = entry.position.at(block);
    entry.arriving[i] -= layers;
    if (intact) {
      entry.landed[i] |= layers;
    }
  }
  if (intact) {
    entry.missing_pieces -= pieces.layers.count * static_cast<int>(pieces.blocks.size());
    entry.stats.bytes += PieceBytes(pieces);
    ++entry.stats.messages;
    stats_.bytes_received += PieceBytes(pieces);
    ++stats_.messages_received;
  }
  if (entry.moving) {
    MoveNow(entry);
  } else if (entry.missing_pieces == 0) {
    LandOrConfirm(entry);
  } else if (!status.ok() && entry.reader() != nullptr) {
    Move(entry, status);
  } else if (entry.all_said && entry.receives == 0) {
    AskAgainOrMove(entry);
  }
}

void HandoffFetcher::OnConnected(Connection& connection) {
  for (const HandoffId& id : OpenOn(connection.peer)) {
    if (Entry* entry = FindOpen(id)) {
      entry->ways = connection.ways;
      SendFetch(*entry);
    }
  }
}

void HandoffFetcher::OnLost(PeerId peer, const absl::Status& why) {
  for (const HandoffId& id : OpenOn(peer)) {
    Entry& entry = *fetches_.at(id);
    entry.source.reset();
    entry.ways.clear();
    Move(entry, why);
  }
}

std::vector<HandoffId> HandoffFetcher::OpenOn(PeerId peer) const {
  std::vector<HandoffId> open;
  for (const auto& [id, entry] : fetches_) {
    if (!entry->ended() && entry->source == peer) {
      open.push_back(id);
    }
  }
  return open;
}

void HandoffFetcher::Tick(TimePoint now) {
  std::vector<HandoffId> late;
  for (const auto& [id, entry] : fetches_) {
    if (entry->ended() && now >= entry->let_go_deadline && entry->source) {
      connections_.Close(*entry->source,
                         absl::UnavailableError("peer does not finish what it began to send"));
    } else if (!entry->ended() && now >= entry->request.deadline) {
      late.push_back(id);
    } else if (!entry->ended() && !entry->moving && entry->missing_pieces == 0 &&
               now >= entry->ask_again) {
      LandOrConfirm(*entry);
    }
  }
  for (const HandoffId& id : late) {
    Fail(*fetches_.at(id), absl::DeadlineExceededError("fetch not finished by its deadline"));
  }
}

void HandoffFetcher::EndAll(const absl::Status& why) {
  std::vector<HandoffId> open;
  for (const auto& [id, entry] : fetches_) {
    if (!entry->ended()) {
      open.push_back(id);
    }
  }
  for (const HandoffId& id : open) {
    Fail(*fetches_.at(id), why);
  }
}

void HandoffFetcher::FinishAll() {
  receives_.clear();
  stats_.receiving = 0;
  std::vector<HandoffId> ended;
  for (auto& [id, entry] : fetches_) {
    entry->receives = 0;
    ended.push_back(id);
  }
  for (const HandoffId& id : ended) {
    ForgetIfLetGo(id);
  }
}

HandoffFetcher::Entry* HandoffFetcher::FindOpen(HandoffId id) {
  const auto found = fetches_.find(id);
  return found == fetches_.end() || found->second->ended() ? nullptr : found->second.get();
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

// Everything a peer says about pieces, before any memory is named for them.
std::optional<DropReason> HandoffFetcher::CheckPieces(const Entry& entry,
                                                      const Pieces& pieces) const {
  if (pieces.round != entry.round || entry.moving) {
    return pieces.round < entry.round || entry.moving ? DropReason::kReplayed
                                                      : DropReason::kUnexpected;
  }
  std::optional<std::uint32_t> previous;
  for (const std::uint32_t block : pieces.blocks) {
    if (!entry.position.contains(block) || (previous && block <= *previous)) {
      return DropReason::kBadBlocks;
    }
    previous = block;
  }
  if (!previous) {
    return DropReason::kBadBlocks;
  }
  if (pieces.layers.count == 0 ||
      pieces.layers.first + pieces.layers.count > options_.pool.layout.layers) {
    return DropReason::kBadLayers;
  }
  return std::nullopt;
}

std::optional<DropReason> HandoffFetcher::CheckNotHere(const Entry& entry,
                                                       const Pieces& pieces) const {
  const LayerSet layers(pieces.layers);
  for (const std::uint32_t block : pieces.blocks) {
    const std::size_t i = entry.position.at(block);
    if (layers.Intersects(entry.landed[i]) || layers.Intersects(entry.arriving[i])) {
      return DropReason::kReplayed;
    }
  }
  return std::nullopt;
}

// From here on the transport knows the pieces' memory, until OnReceived.
TransferToken HandoffFetcher::BeginReceive(Entry& entry, Pieces pieces) {
  if (entry.state == State::kRequested) {
    MustMove(entry.state, State::kFetching);
    entry.stats.first_byte = Now();
  }
  const LayerSet layers(pieces.layers);
  for (const std::uint32_t block : pieces.blocks) {
    entry.arriving[entry.position.at(block)] |= layers;
  }
  ++entry.receives;
  ++stats_.receiving;
  const TransferToken token(next_token_);
  next_token_ += 2;
  receives_[token] = {.handoff = entry.request.id, .pieces = std::move(pieces)};
  return token;
}

std::size_t HandoffFetcher::PieceBytes(const Pieces& pieces) const {
  return pieces.blocks.size() * static_cast<std::size_t>(pieces.layers.count) *
         options_.pool.layout.layer_bytes;
}

// REQUIRES: `source_index` is wanted and `layers` lie in the layout.
std::span<std::byte> HandoffFetcher::Piece(const Entry& entry,
                                           std::uint32_t source_index,
                                           LayerRange layers) const {
  const KvLayout& layout = options_.pool.layout;
  const BlockId block = entry.request.blocks[entry.position.at(source_index)].destination;
  return {options_.pool.base + block.value() * layout.block_bytes() +
              static_cast<std::size_t>(layers.first) * layout.layer_bytes,
          static_cast<std::size_t>(layers.count) * layout.layer_bytes};
}

bool HandoffFetcher::ChecksumHolds(const Entry& entry, const Receive& receive) const {
  const Pieces& pieces = receive.pieces;
  std::vector<std::span<const std::byte>> parts;
  for (const std::uint32_t block : pieces.blocks) {
    parts.push_back(Piece(entry, block, pieces.layers));
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
  std::optional<std::uint32_t> expected = receive.pieces.crc32c;
  if (receive.pieces.checksum_follows) {
    expected = copied != nullptr ? copied->sent : std::nullopt;
  }
  const bool taken = copied != nullptr && copied->bytes == PieceBytes(receive.pieces);
  return expected && *expected == (taken ? copied->crc32c : Checksum(payload));
}

// Asks for every block that is not whole.
void HandoffFetcher::SendFetch(Entry& entry) {
  wire::Fetch fetch{.handoff = entry.request.id,
                    .epoch = entry.request.epoch,
                    .round = entry.round,
                    .first_layer = 0,
                    .layer_count = static_cast<std::uint16_t>(options_.pool.layout.layers),
                    .credit_bytes = options_.credit_bytes,
                    .reads = entry.reader() == nullptr
                                 ? std::uint16_t{0}
                                 : static_cast<std::uint16_t>(entry.reader()->kind())};
  for (std::size_t i = 0; i < entry.landed.size(); ++i) {
    if (entry.landed[i].Count() == options_.pool.layout.layers) {
      continue;
    }
    const auto index = static_cast<std::uint32_t>(entry.request.blocks[i].source_index);
    if (!fetch.blocks.empty() && fetch.blocks.back().first + fetch.blocks.back().count == index) {
      ++fetch.blocks.back().count;
    } else {
      fetch.blocks.push_back({.first = index, .count = 1});
    }
  }
  if (fetch.blocks.size() > wire::kMaxBlockRuns) {
    Fail(entry, absl::InvalidArgumentError("fetch of blocks too scattered for one message"));
    return;
  }
  if (entry.state == State::kLeased) {
    MustMove(entry.state, State::kRequested);
    entry.stats.requested = Now();
  }
  connections_.SendControl(*entry.source, fetch);
}

// Whole blocks are kept; of the others every piece is wanted again.
void HandoffFetcher::NextRound(Entry& entry) {
  const int layers = options_.pool.layout.layers;
  int blocks = 0;
  for (LayerSet& landed : entry.landed) {
    if (landed.Count() < layers) {
      entry.missing_pieces += landed.Count();
      landed = LayerSet();
      ++blocks;
    }
  }
  ++entry.round;
  entry.all_said = false;
  entry.checksum_failed = false;
  entry.stats.refetched_blocks += blocks;
  stats_.refetched_blocks += static_cast<std::uint64_t>(blocks);
}

// The prefill side has nothing more to say and pieces are missing: lost on the way or damaged.
void HandoffFetcher::AskAgainOrMove(Entry& entry) {
  if (entry.round - entry.first_round + 1 == kMaxRounds) {
    Move(entry, entry.checksum_failed
                    ? absl::DataLossError("checksum mismatch in pieces fetched twice")
                    : absl::UnavailableError("pieces did not arrive though fetched twice"));
    return;
  }
  NextRound(entry);
  SendFetch(entry);
}

void HandoffFetcher::Move(Entry& entry, const absl::Status& why) {
  entry.first_failure.Update(why);
  const bool another_way = entry.way + 1 < entry.ways.size();
  if (!another_way && entry.route + 1 >= entry.routes.size()) {
    Fail(entry, entry.first_failure);
    return;
  }
  entry.moving = why;
  if (entry.receives == 0) {
    MoveNow(entry);
  }
}

// A transport that has failed may still write what it was told to: until it has let go, nothing
// else may be.
void HandoffFetcher::MoveNow(Entry& entry) {
  if (entry.receives > 0) {
    return;
  }
  if (entry.missing_pieces == 0) {
    Fail(entry, entry.first_failure);  // nothing is left to move: all blocks are whole
    return;
  }
  LogEvent(LogLevel::kWarn, "handoff.moving",
           {{"handoff", entry.request.id.ToString()},
            {"from", ToString(entry.way < entry.ways.size() ? entry.ways[entry.way].kind
                                                            : entry.routes[entry.route].kind)},
            {"missing_pieces", entry.missing_pieces},
            {"why", *entry.moving}});
  entry.moving.reset();
  ++entry.stats.moves;
  ++stats_.moves;
  NextRound(entry);
  entry.first_round = entry.round;
  if (entry.way + 1 < entry.ways.size()) {
    ++entry.way;
    SendFetch(entry);
    return;
  }
  if (entry.source) {
    // What it still says of this handoff is heard as a stranger's.
    connections_.RemoveHandoff(*entry.source);
    entry.source.reset();
  }
  entry.ways.clear();
  entry.way = 0;
  ++entry.route;
  TakeRoute(entry, options_.times.connect_again);
}

void HandoffFetcher::TakeRoute(Entry& entry, Duration patience) {
  const absl::StatusOr<Connection*> connection =
      connections_.Reach(entry.routes[entry.route], entry.request.peer, patience);
  if (!connection.ok()) {
    Move(entry, connection.status());
    return;
  }
  entry.source = (*connection)->peer;
  connections_.AddHandoff(**connection);
  if ((*connection)->state == ConnectionState::kReady) {
    entry.ways = (*connection)->ways;
    SendFetch(entry);
  }
}

// What was read may have been overwritten meanwhile: only the owner can say.
void HandoffFetcher::LandOrConfirm(Entry& entry) {
  if (entry.stats.last_byte == TimePoint()) {
    entry.stats.last_byte = Now();
    HitFailpoint("decode.kLanded").IgnoreError();
  }
  if (entry.reader() == nullptr) {
    connections_.SendControl(*entry.source,
                             wire::Ack{.handoff = entry.request.id, .epoch = entry.request.epoch});
    Land(entry);
    return;
  }
  entry.ask_again = Now() + options_.times.heartbeat;
  connections_.SendControl(
      *entry.source,
      wire::Ack{.handoff = entry.request.id, .epoch = entry.request.epoch, .confirm = 1});
}

void HandoffFetcher::Land(Entry& entry) {
  const HandoffId id = entry.request.id;
  MustMove(entry.state, State::kLanded);
  const Way& way = entry.ways[entry.way];
  entry.stats.transport =
      way.reader != nullptr ? std::string(ToString(way.kind)) : transport_.CarrierOf(*entry.source);
  const auto kind = std::find(kTransportKinds.begin(), kTransportKinds.end(), way.kind);
  ++stats_.landed[static_cast<std::size_t>(kind - kTransportKinds.begin())];
  connections_.RemoveHandoff(*entry.source);
  --stats_.fetches;
  const std::unique_ptr<Entry> landed = std::move(fetches_.at(id));
  fetches_.erase(id);
  landed->request.pin.reset();
  landed->request.sink->OnLanded(id, landed->stats);
}

void HandoffFetcher::Fail(Entry& entry, absl::Status why) {
  const HandoffId id = entry.request.id;
  if (entry.source) {
    connections_.SendControl(*entry.source,
                             wire::Cancel{.handoff = id,
                                          .epoch = entry.request.epoch,
                                          .code = static_cast<std::uint16_t>(why.code())});
    connections_.RemoveHandoff(*entry.source);
  }
  MustMove(entry.state, absl::IsCancelled(why) ? State::kCancelled : State::kFailed);
  entry.let_go_deadline = Now() + options_.times.let_go;
  --stats_.fetches;

  std::vector<int> whole_blocks;
  for (std::size_t i = 0; i < entry.landed.size(); ++i) {
    if (entry.landed[i].Count() == options_.pool.layout.layers) {
      whole_blocks.push_back(entry.request.blocks[i].source_index);
    }
  }
  FetchSink& sink = *entry.request.sink;
  if (entry.receives > 0) {
    stats_.quarantined_blocks += static_cast<int>(entry.request.blocks.size());
  } else {
    fetches_.erase(id);
  }
  sink.OnFailed(id, why, whole_blocks);
}

void HandoffFetcher::ForgetIfLetGo(HandoffId id) {
  const auto found = fetches_.find(id);
  if (found->second->receives == 0) {
    stats_.quarantined_blocks -= static_cast<int>(found->second->request.blocks.size());
    fetches_.erase(found);
  }
}

}  // namespace baton
