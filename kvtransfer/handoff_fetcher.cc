#include "kvtransfer/handoff_fetcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/failpoint.h"
#include "common/log.h"

namespace baton {
namespace {

using State = DecodeHandoffState;

constexpr std::uint32_t kMaxRounds = 2;
constexpr std::size_t kRememberedEnds = 4096;
// Between two reports of progress.
constexpr Duration kReportPause = std::chrono::milliseconds(50);

}  // namespace

HandoffFetcher::HandoffFetcher(const TransferOptions& options,
                               ConnectionTable& connections,
                               const Transport& transport,
                               TransferStats& stats)
    : options_(options),
      connections_(connections),
      transport_(transport),
      stats_(stats),
      over_(kRememberedEnds) {}

void HandoffFetcher::Start(FetchRequest request) {
  const HandoffId id = request.id;
  if (fetches_.contains(id)) {
    request.pin.reset();
    request.sink->OnFailed(
        id, absl::AlreadyExistsError(absl::StrCat("handoff ", id.ToString(), " is open")), {});
    return;
  }
  auto owned = std::make_unique<Entry>(std::move(request), options_.pool);
  Entry& entry = *owned;
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
  if (now >= next_report_) {
    next_report_ = now + kReportPause;
    ReportProgress();
  }
  std::vector<HandoffId> late;
  for (const auto& [id, entry] : fetches_) {
    if (entry->ended() && now >= entry->let_go_deadline && entry->source) {
      connections_.Close(*entry->source,
                         absl::UnavailableError("peer does not finish what it began to send"));
    } else if (!entry->ended() && now >= entry->request.deadline) {
      late.push_back(id);
    } else if (!entry->ended() && !entry->moving && entry->pieces.all_landed() &&
               now >= entry->ask_again) {
      LandOrConfirm(*entry);
    }
  }
  for (const HandoffId& id : late) {
    Fail(*fetches_.at(id), absl::DeadlineExceededError("fetch not finished by its deadline"));
  }
}

// Of messages that are still arriving, what their transport says it has copied.
void HandoffFetcher::ReportProgress() {
  absl::flat_hash_map<HandoffId, std::size_t> arriving;
  for (const auto& [token, receive] : receives_) {
    arriving[receive.handoff] += receive.copied != nullptr ? receive.copied->bytes : 0;
  }
  for (const auto& [id, entry] : fetches_) {
    const auto more = arriving.find(id);
    const std::size_t bytes = entry->stats.bytes + (more == arriving.end() ? 0 : more->second);
    if (!entry->ended() && bytes > entry->progress) {
      entry->progress = bytes;
      entry->request.sink->OnProgress(id, bytes);
    }
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

// Asks for every piece that has not landed.
void HandoffFetcher::SendFetch(Entry& entry) {
  std::optional<std::vector<wire::BlockRun>> missing = entry.pieces.Missing();
  if (!missing) {
    Fail(entry, absl::InvalidArgumentError("fetch of blocks too scattered for one message"));
    return;
  }
  const wire::Fetch fetch{.handoff = entry.request.id,
                          .epoch = entry.request.epoch,
                          .round = entry.round,
                          .credit_bytes = options_.credit_bytes,
                          .reads = entry.reader() == nullptr
                                       ? std::uint16_t{0}
                                       : static_cast<std::uint16_t>(entry.reader()->kind()),
                          .blocks = *std::move(missing)};
  if (entry.state == State::kLeased) {
    MustMove(entry.state, State::kRequested);
    entry.stats.requested = Now();
  }
  connections_.SendControl(*entry.source, fetch);
}

// What has landed is kept; the rest is wanted again.
void HandoffFetcher::NextRound(Entry& entry) {
  const int blocks = entry.pieces.BlocksNotWhole();
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
  if (entry.pieces.all_landed()) {
    Fail(entry, entry.first_failure);  // nothing is left to move: all blocks are whole
    return;
  }
  LogEvent(LogLevel::kWarn, "handoff.moving",
           {{"handoff", entry.request.id.ToString()},
            {"from", ToString(entry.way < entry.ways.size() ? entry.ways[entry.way].kind
                                                            : entry.routes[entry.route].kind)},
            {"missing_pieces", entry.pieces.missing()},
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
  over_.Insert(id);
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

  const std::vector<int> whole_blocks = entry.pieces.WholeBlocks();
  over_.Insert(id);
  FetchSink& sink = *entry.request.sink;
  if (entry.receives > 0) {
    stats_.quarantined_blocks += static_cast<int>(entry.pieces.blocks());
  } else {
    fetches_.erase(id);
  }
  sink.OnFailed(id, why, whole_blocks);
}

void HandoffFetcher::ForgetIfLetGo(HandoffId id) {
  const auto found = fetches_.find(id);
  if (found->second->receives == 0) {
    stats_.quarantined_blocks -= static_cast<int>(found->second->pieces.blocks());
    fetches_.erase(found);
  }
}

}  // namespace baton
