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

LayerRange LayersOf(const wire::Data& data) {
  return {data.first_layer, data.layer_count};
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
  const absl::StatusOr<Connection*> connection =
      connections_.Reach(entry.request.address, entry.request.peer);
  if (!connection.ok()) {
    Fail(entry, connection.status());
    return;
  }
  entry.source = (*connection)->peer;
  connections_.AddHandoff(**connection);
  if ((*connection)->state == ConnectionState::kReady) {
    SendFetch(entry);
  }
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
  dropped = CheckSender(*entry, connection, data.epoch);
  if (!dropped && data.round != entry->round) {
    dropped = data.round < entry->round ? DropReason::kReplayed : DropReason::kUnexpected;
  }
  if (!dropped) {
    dropped = CheckPieces(*entry, data, payload_bytes);
  }
  if (dropped) {
    return {};
  }

  if (entry->state == State::kRequested) {
    MustMove(entry->state, State::kFetching);
    entry->stats.first_byte = Now();
  }
  ReceivePlan plan{.accept = true, .destinations = {}, .token = TransferToken(next_token_)};
  next_token_ += 2;
  if (options_.pool.kind != MemoryKind::kHost) {
    plan.verify = [this, token = plan.token](ConstParts payload) { return Verify(token, payload); };
  }
  plan.destinations.reserve(data.blocks.size());
  const LayerSet layers(LayersOf(data));
  for (const std::uint32_t block : data.blocks) {
    plan.destinations.push_back(Piece(*entry, block, LayersOf(data)));
    entry->arriving[entry->position.at(block)] |= layers;
  }
  ++entry->receives;
  ++stats_.receiving;
  receives_[plan.token] = {.handoff = data.handoff, .data = data};
  return plan;
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
  if (complete.round != entry->round) {
    return DropReason::kReplayed;
  }
  entry->all_said = true;
  if (entry->receives == 0) {
    AskAgainOrFail(*entry);
  }
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
  const LayerSet layers(LayersOf(receive.data));
  const bool intact =
      status.ok() && (options_.pool.kind == MemoryKind::kHost ? ChecksumHolds(entry, receive.data)
                                                              : receive.verified);
  if (!intact && (status.ok() || absl::IsDataLoss(status))) {
    entry.checksum_failed = true;
    ++stats_.dropped[static_cast<std::size_t>(DropReason::kChecksum)];
    LogEvent(LogLevel::kWarn, "handoff.checksum_mismatch",
             {{"handoff", receive.handoff.ToString()}, {"sequence", receive.data.sequence}});
  }
  for (const std::uint32_t block : receive.data.blocks) {
    const std::size_t i = entry.position.at(block);
    entry.arriving[i] -= layers;
    if (intact) {
      entry.landed[i] |= layers;
    }
  }
  if (intact) {
    const int pieces = receive.data.layer_count * static_cast<int>(receive.data.blocks.size());
    const std::size_t bytes = static_cast<std::size_t>(pieces) * options_.pool.layout.layer_bytes;
    entry.missing_pieces -= pieces;
    entry.stats.bytes += bytes;
    ++entry.stats.messages;
    stats_.bytes_received += bytes;
    ++stats_.messages_received;
  }
  if (entry.missing_pieces == 0) {
    Land(entry);
  } else if (entry.all_said && entry.receives == 0) {
    AskAgainOrFail(entry);
  }
}

void HandoffFetcher::OnReady(Connection& connection) {
  for (const HandoffId& id : OpenOn(connection.peer)) {
    if (Entry* entry = FindOpen(id)) {
      SendFetch(*entry);
    }
  }
}

void HandoffFetcher::OnLost(PeerId peer, const absl::Status& why) {
  for (const HandoffId& id : OpenOn(peer)) {
    Fail(*fetches_.at(id), why);
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
    if (entry->ended() && now >= entry->let_go_deadline) {
      connections_.Close(*entry->source,
                         absl::UnavailableError("peer does not finish what it began to send"));
    } else if (!entry->ended() && now >= entry->request.deadline) {
      late.push_back(id);
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

// Everything a peer says about a piece, before any memory is named for it.
std::optional<DropReason> HandoffFetcher::CheckPieces(const Entry& entry,
                                                      const wire::Data& data,
                                                      std::size_t payload_bytes) const {
  std::optional<std::uint32_t> previous;
  for (const std::uint32_t block : data.blocks) {
    if (!entry.position.contains(block) || (previous && block <= *previous)) {
      return DropReason::kBadBlocks;
    }
    previous = block;
  }
  if (!previous) {
    return DropReason::kBadBlocks;
  }
  const KvLayout& layout = options_.pool.layout;
  if (data.layer_count == 0 || int{data.first_layer} + data.layer_count > layout.layers) {
    return DropReason::kBadLayers;
  }
  if (payload_bytes != data.blocks.size() * data.layer_count * layout.layer_bytes) {
    return DropReason::kBadLength;
  }
  const LayerSet layers(LayersOf(data));
  for (const std::uint32_t block : data.blocks) {
    const std::size_t i = entry.position.at(block);
    if (layers.Intersects(entry.landed[i]) || layers.Intersects(entry.arriving[i])) {
      return DropReason::kReplayed;
    }
  }
  return std::nullopt;
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

bool HandoffFetcher::ChecksumHolds(const Entry& entry, const wire::Data& data) const {
  std::uint32_t crc = 0;
  for (const std::uint32_t block : data.blocks) {
    const std::span<std::byte> piece = Piece(entry, block, LayersOf(data));
    crc = Crc32c({reinterpret_cast<const char*>(piece.data()), piece.size()}, crc);
  }
  return crc == data.crc32c;
}

bool HandoffFetcher::Verify(TransferToken token, ConstParts payload) {
  const auto found = receives_.find(token);
  if (found == receives_.end()) {
    return false;
  }
  found->second.verified = Checksum(payload) == found->second.data.crc32c;
  return found->second.verified;
}

// Asks for every block that is not whole.
void HandoffFetcher::SendFetch(Entry& entry) {
  wire::Fetch fetch{.handoff = entry.request.id,
                    .epoch = entry.request.epoch,
                    .round = entry.round,
                    .first_layer = 0,
                    .layer_count = static_cast<std::uint16_t>(options_.pool.layout.layers),
                    .credit_bytes = options_.credit_bytes};
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

// The prefill side has nothing more to send and pieces are missing: lost on the way or damaged.
void HandoffFetcher::AskAgainOrFail(Entry& entry) {
  if (entry.round == kMaxRounds) {
    Fail(entry, entry.checksum_failed
                    ? absl::DataLossError("checksum mismatch in pieces fetched twice")
                    : absl::UnavailableError("pieces did not arrive though fetched twice"));
    return;
  }
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
  SendFetch(entry);
}

void HandoffFetcher::Land(Entry& entry) {
  const HandoffId id = entry.request.id;
  MustMove(entry.state, State::kLanded);
  entry.stats.last_byte = Now();
  entry.stats.transport = transport_.CarrierOf(*entry.source);
  HitFailpoint("decode.kLanded").IgnoreError();
  connections_.SendControl(*entry.source, wire::Ack{.handoff = id, .epoch = entry.request.epoch});
  connections_.RemoveHandoff(*entry.source);
  --stats_.fetches;
  const std::unique_ptr<Entry> landed = std::move(fetches_.at(id));
  fetches_.erase(id);
  landed->request.pin.reset();
  landed->request.sink->OnLanded(id, landed->stats);
}

void HandoffFetcher::Fail(Entry& entry, const absl::Status& why) {
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
