#include "kvtransfer/handoff_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/failpoint.h"
#include "common/log.h"

namespace baton {
namespace {

constexpr std::size_t kRememberedEnds = 4096;

using State = PrefillHandoffState;

}  // namespace

HandoffServer::HandoffServer(const TransferOptions& options,
                             ConnectionTable& connections,
                             TransferStats& stats)
    : options_(options),
      connections_(connections),
      stats_(stats),
      over_(kRememberedEnds),
      released_(kRememberedEnds) {}

void HandoffServer::Offer(OfferRequest request) {
  const HandoffId id = request.id;
  if (offers_.contains(id) || over_.Contains(id)) {
    const absl::Status why =
        over_.Contains(id)
            ? absl::CancelledError(absl::StrCat("handoff ", id.ToString(), " is over"))
            : absl::AlreadyExistsError(absl::StrCat("handoff ", id.ToString(), " is open"));
    request.pin.reset();
    request.sink->OnEnd(id, over_.Contains(id) ? State::kCancelled : State::kFailed, why, {});
    return;
  }
  auto entry = std::make_unique<Entry>(std::move(request), options_.pool.layout);
  entry->lease_deadline = Now() + options_.times.lease;
  MustMove(entry->state, State::kComputing);
  Entry& added = *entry;
  offers_[id] = std::move(entry);
  turns_.push_back(id);
  ++stats_.offers;

  if (const auto parked = parked_.find(id); parked != parked_.end()) {
    const Parked waiting = std::move(parked->second);
    parked_.erase(parked);
    stats_.parked_fetches = static_cast<int>(parked_.size());
    connections_.RemoveHandoff(waiting.peer);
    Connection* connection = connections_.Find(waiting.peer);
    if (connection != nullptr) {
      if (const std::optional<DropReason> dropped = Serve(added, *connection, waiting.fetch)) {
        ++stats_.dropped[static_cast<std::size_t>(*dropped)];
      }
    }
  }
}

void HandoffServer::MarkReady(HandoffId id, const ReadyRange& range) {
  if (Entry* entry = FindOpen(id)) {
    entry->pieces.MarkReady(range);
  }
}

void HandoffServer::FinishComputing(HandoffId id) {
  Entry* entry = FindOpen(id);
  if (entry != nullptr && entry->state == State::kComputing) {
    MustMove(entry->state, State::kServing);
    HitFailpoint("prefill.kServing").IgnoreError();
    SayCompleteIfAllSent(*entry);
  }
}

void HandoffServer::Withdraw(HandoffId id, const absl::Status& why) {
  if (Entry* entry = FindOpen(id)) {
    if (entry->reader) {
      SayError(*entry->reader, id, entry->request.epoch, why);
    }
    End(*entry, absl::IsCancelled(why) ? State::kCancelled : State::kFailed, why);
  }
}

std::optional<DropReason> HandoffServer::OnFetch(Connection& connection, const wire::Fetch& fetch) {
  const auto found = offers_.find(fetch.handoff);
  if (over_.Contains(fetch.handoff) || (found != offers_.end() && found->second->ended())) {
    SayError(connection.peer, fetch.handoff, fetch.epoch, absl::AbortedError("handoff is over"));
    return DropReason::kUnknownHandoff;
  }
  return found == offers_.end() ? Park(connection, fetch)
                                : Serve(*found->second, connection, fetch);
}

std::optional<DropReason> HandoffServer::OnAck(const Connection& connection, const wire::Ack& ack) {
  Entry* entry = FindOpen(ack.handoff);
  const bool confirm = ack.confirm != 0;
  const wire::Released released{.handoff = ack.handoff, .epoch = ack.epoch};
  if (entry == nullptr) {
    if (confirm && released_.Contains(ack.handoff)) {
      connections_.SendControl(connection.peer, released);  // the first answer was lost
      return std::nullopt;
    }
    if (confirm) {
      SayError(connection.peer, ack.handoff, ack.epoch, absl::AbortedError("handoff is over"));
    }
    return DropReason::kUnknownHandoff;
  }
  if (const auto refused = Admit(*entry, connection, ack.epoch)) {
    return refused;
  }
  if (!entry->pieces.all_sent() || entry->round_messages == 0) {
    return DropReason::kUnexpected;
  }
  // The peer has all it wanted; that the engine or our own last report is behind changes nothing
  // for the handoff.
  if (entry->state == State::kComputing) {
    MustMove(entry->state, State::kServing);
  }
  if (entry->state == State::kServing) {
    MustMove(entry->state, State::kServed);
  }
  released_.Insert(ack.handoff);
  if (confirm) {
    connections_.SendControl(connection.peer, released);
  }
  End(*entry, State::kReleased, absl::OkStatus());
  return std::nullopt;
}

std::optional<DropReason> HandoffServer::OnCancel(const Connection& connection,
                                                  const wire::Cancel& cancel) {
  if (const auto parked = parked_.find(cancel.handoff); parked != parked_.end()) {
    if (parked->second.peer != connection.peer) {
      return DropReason::kWrongPeer;
    }
    parked_.erase(parked);
    stats_.parked_fetches = static_cast<int>(parked_.size());
    connections_.RemoveHandoff(connection.peer);
    over_.Insert(cancel.handoff);
    return std::nullopt;
  }
  Entry* entry = FindOpen(cancel.handoff);
  if (entry == nullptr) {
    if (!offers_.contains(cancel.handoff)) {
      over_.Insert(cancel.handoff);  // its offer may be on the way
    }
    return DropReason::kUnknownHandoff;
  }
  if (const auto refused = Admit(*entry, connection, cancel.epoch)) {
    return refused;
  }
  End(*entry, State::kCancelled,
      absl::CancelledError(absl::StrCat("decode side cancelled with code ", cancel.code)));
  return std::nullopt;
}

void HandoffServer::OnRenewals(const Connection& connection, const std::vector<HandoffId>& leases) {
  const TimePoint deadline = Now() + options_.times.lease;
  for (const HandoffId& id : leases) {
    Entry* entry = FindOpen(id);
    if (entry != nullptr && entry->request.peer == connection.instance) {
      entry->lease_deadline = deadline;
    }
  }
}

void HandoffServer::OnLost(PeerId peer) {
  for (auto& [id, entry] : offers_) {
    if (entry->reader == peer) {
      Unbind(*entry);
    }
  }
  absl::erase_if(parked_, [&](const auto& parked) { return parked.second.peer == peer; });
  stats_.parked_fetches = static_cast<int>(parked_.size());
}

void HandoffServer::Tick(TimePoint now) {
  std::vector<HandoffId> expired;
  for (auto& [id, entry] : offers_) {
    if (!entry->ended() && now >= entry->lease_deadline) {
      expired.push_back(id);
    } else if (entry->state == State::kServed && entry->reader && now >= entry->say_again) {
      // Neither acknowledged nor asked for again: the message was lost, and nothing else tells the
      // decode side that it waits for nothing.
      SayComplete(*entry);
    } else if (entry->ended() && now >= entry->let_go_deadline && entry->reader) {
      connections_.Close(*entry->reader,
                         absl::UnavailableError("peer does not take what it asked for"));
    }
  }
  for (const HandoffId& id : expired) {
    Entry& entry = *offers_.at(id);
    const absl::Status why = absl::AbortedError("lease expired");
    LogEvent(LogLevel::kWarn, "handoff.expired",
             {{"handoff", id.ToString()}, {"state", ToString(entry.state)}});
    if (entry.reader) {
      SayError(*entry.reader, id, entry.request.epoch, why);
    }
    End(entry, State::kExpired, why);
  }
}

void HandoffServer::EndAll(const absl::Status& why) {
  std::vector<HandoffId> open;
  for (const auto& [id, entry] : offers_) {
    open.push_back(id);
  }
  for (const HandoffId& id : open) {
    Withdraw(id, why);
  }
  for (const auto& [id, parked] : parked_) {
    SayError(parked.peer, id, parked.fetch.epoch, why);
    connections_.RemoveHandoff(parked.peer);
  }
  parked_.clear();
  stats_.parked_fetches = 0;
}

void HandoffServer::FinishAll() {
  in_flight_.clear();
  std::vector<HandoffId> ended;
  for (auto& [id, entry] : offers_) {
    entry->messages_in_flight = 0;
    ended.push_back(id);
  }
  for (const HandoffId& id : ended) {
    FinishIfLetGo(id);
  }
}

HandoffServer::Entry* HandoffServer::FindOpen(HandoffId id) {
  const auto found = offers_.find(id);
  return found == offers_.end() || found->second->ended() ? nullptr : found->second.get();
}

std::optional<DropReason> HandoffServer::Admit(const Entry& entry,
                                               const Connection& connection,
                                               std::uint64_t epoch) const {
  if (epoch != entry.request.epoch) {
    return DropReason::kWrongEpoch;
  }
  if (connection.instance != entry.request.peer) {
    return DropReason::kWrongPeer;
  }
  return std::nullopt;
}

std::optional<DropReason> HandoffServer::Park(Connection& connection, const wire::Fetch& fetch) {
  if (parked_.contains(fetch.handoff)) {
    return DropReason::kReplayed;
  }
  if (parked_.size() >= options_.parked_fetches) {
    SayError(connection.peer, fetch.handoff, fetch.epoch,
             absl::ResourceExhaustedError("too many fetches wait for their offer"));
    return DropReason::kUnexpected;
  }
  parked_[fetch.handoff] = {.peer = connection.peer, .fetch = fetch};
  stats_.parked_fetches = static_cast<int>(parked_.size());
  connections_.AddHandoff(connection);
  return std::nullopt;
}

std::optional<DropReason> HandoffServer::CheckFetch(const Entry& entry,
                                                    const wire::Fetch& fetch) const {
  return connections_.Allows(fetch.reads) ? entry.pieces.Check(fetch.blocks)
                                          : std::optional(DropReason::kUnexpected);
}

std::optional<DropReason> HandoffServer::Serve(Entry& entry,
                                               Connection& connection,
                                               const wire::Fetch& fetch) {
  if (const auto refused = Admit(entry, connection, fetch.epoch)) {
    if (*refused == DropReason::kWrongEpoch) {
      SayError(connection.peer, fetch.handoff, fetch.epoch,
               absl::AbortedError(absl::StrCat("epoch ", fetch.epoch, " is over")));
    }
    return refused;
  }
  if (entry.reader == connection.peer && fetch.round <= entry.fetch.round) {
    return DropReason::kReplayed;
  }
  if (const auto refused = CheckFetch(entry, fetch)) {
    SayError(connection.peer, fetch.handoff, fetch.epoch,
             absl::InvalidArgumentError("fetch names blocks or layers that are not offered"));
    return refused;
  }
  Unbind(entry);
  entry.reader = connection.peer;
  entry.fetch = fetch;
  entry.lease_deadline = Now() + options_.times.lease;
  entry.pieces.Want(fetch.blocks);
  entry.stats.blocks_wanted = entry.pieces.blocks_wanted();
  connections_.AddHandoff(connection);
  connections_.SetInUse(connection, fetch.reads);
  if (entry.state == State::kServed) {
    MustMove(entry.state, State::kServing);
  }
  return std::nullopt;
}

// Forgets the standing fetch; the offer waits for another one until its lease ends.
void HandoffServer::Unbind(Entry& entry) {
  if (entry.reader) {
    connections_.RemoveHandoff(*entry.reader);
  }
  entry.reader.reset();
  entry.fetch = {};
  entry.pieces.WantNothing();
  entry.round_messages = 0;
  entry.round_bytes = 0;
  entry.complete_said = false;
  entry.stats.blocks_wanted = 0;
}

void HandoffServer::End(Entry& entry, State end, const absl::Status& why) {
  MustMove(entry.state, end);
  entry.why = why;
  entry.let_go_deadline = Now() + options_.times.let_go;
  --stats_.offers;
  if (entry.messages_in_flight > 0) {
    entry.quarantined = true;
    stats_.quarantined_blocks += static_cast<int>(entry.request.blocks.size());
  } else {
    FinishIfLetGo(entry.request.id);
  }
}

void HandoffServer::FinishIfLetGo(HandoffId id) {
  const auto found = offers_.find(id);
  if (found->second->messages_in_flight > 0) {
    return;
  }
  const std::unique_ptr<Entry> entry = std::move(found->second);
  offers_.erase(found);
  if (entry->reader) {
    connections_.RemoveHandoff(*entry->reader);
  }
  if (entry->quarantined) {
    stats_.quarantined_blocks -= static_cast<int>(entry->request.blocks.size());
  }
  over_.Insert(id);
  entry->request.pin.reset();
  entry->request.sink->OnEnd(id, entry->state, entry->why, entry->stats);
}

}  // namespace baton
