#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "kvtransfer/connection_table.h"
#include "kvtransfer/piece_schedule.h"
#include "kvtransfer/recent_ids.h"
#include "kvtransfer/transfer_types.h"
#include "kvtransfer/wire.h"

namespace baton {

// Prefill side: keeps offered blocks pinned, sends what the standing fetch asks for as soon as it
// is ready, or announces it to a peer that reads the pool itself, and lets go when acknowledged,
// cancelled, withdrawn or expired.
//
// An offer that has ended stays here until the transport has let go of its messages; then its pin
// is dropped and its sink called. Ids of ended offers are remembered for a while, so that a late
// fetch is told at once.
//
// Not thread-safe: used only by the transfer thread.
class HandoffServer {
 public:
  // All outlive the server.
  HandoffServer(const TransferOptions& options, ConnectionTable& connections, TransferStats& stats);

  void Offer(OfferRequest request);
  void MarkReady(HandoffId id, const ReadyRange& range);
  void FinishComputing(HandoffId id);
  void Withdraw(HandoffId id, const absl::Status& why);

  // From peers; a reason when the message was dropped.
  std::optional<DropReason> OnFetch(Connection& connection, const wire::Fetch& fetch);
  std::optional<DropReason> OnAck(const Connection& connection, const wire::Ack& ack);
  std::optional<DropReason> OnCancel(const Connection& connection, const wire::Cancel& cancel);
  void OnRenewals(const Connection& connection, const std::vector<HandoffId>& leases);

  // False when the token is not one of ours.
  bool OnSent(PeerId peer, TransferToken token, const absl::Status& status);
  void OnLost(PeerId peer);

  // Sends or announces one message if flow control allows; false when nothing was sent.
  bool Pump();
  void Tick(TimePoint now);

  // Ends every offer; FinishAll also drops the pins still held. REQUIRES for FinishAll: the
  // transport is gone.
  void EndAll(const absl::Status& why);
  void FinishAll();

  bool empty() const { return offers_.empty(); }
  bool moving() const { return !in_flight_.empty(); }
  int open() const { return static_cast<int>(offers_.size() + parked_.size()); }

 private:
  struct Entry {
    Entry(OfferRequest of, const KvLayout& layout)
        : request(std::move(of)), pieces(layout, request.blocks.size()) {}

    OfferRequest request;
    PieceSchedule pieces;
    PrefillHandoffState state = PrefillHandoffState::kQueued;
    TimePoint lease_deadline;
    std::optional<PeerId> reader;  // whose fetch stands
    wire::Fetch fetch;
    std::uint32_t round_messages = 0;
    std::uint64_t round_bytes = 0;
    int messages_in_flight = 0;
    std::size_t bytes_in_flight = 0;
    bool complete_said = false;
    TimePoint say_again;       // while served: when Complete is said once more
    bool quarantined = false;  // ended with messages in flight
    OfferStats stats;
    absl::Status why;           // of the end
    TimePoint let_go_deadline;  // once ended

    bool ended() const { return IsEnd(state); }
  };
  struct Parked {
    PeerId peer;
    wire::Fetch fetch;
  };
  struct InFlight {
    HandoffId handoff;
    std::size_t bytes = 0;
  };
  TimePoint Now() const { return options_.clock->Now(); }
  // nullptr when unknown or ended.
  Entry* FindOpen(HandoffId id);
  std::optional<DropReason> Admit(const Entry& entry,
                                  const Connection& connection,
                                  std::uint64_t epoch) const;
  std::optional<DropReason> Park(Connection& connection, const wire::Fetch& fetch);
  std::optional<DropReason> Serve(Entry& entry, Connection& connection, const wire::Fetch& fetch);
  std::optional<DropReason> CheckFetch(const Entry& entry, const wire::Fetch& fetch) const;
  void Unbind(Entry& entry);

  bool MaySend(const Entry& entry, const PieceSchedule::Selection& selection) const;
  bool SendNext(Entry& entry);
  void CountSent(Entry& entry, const PieceSchedule::Selection& selection);
  std::span<const std::byte> PieceOf(const Entry& entry,
                                     std::uint32_t block,
                                     LayerRange layers) const;
  wire::Ready MakeReady(const Entry& entry, const PieceSchedule::Selection& selection) const;
  OutgoingMessage MakeMessage(const Entry& entry,
                              const Connection& connection,
                              const PieceSchedule::Selection& selection);
  void SayCompleteIfAllSent(Entry& entry);
  void SayComplete(Entry& entry);

  void SayError(PeerId peer, HandoffId id, std::uint64_t epoch, const absl::Status& why);
  void End(Entry& entry, PrefillHandoffState end, const absl::Status& why);
  void FinishIfLetGo(HandoffId id);

  const TransferOptions& options_;
  ConnectionTable& connections_;
  TransferStats& stats_;
  absl::flat_hash_map<HandoffId, std::unique_ptr<Entry>> offers_;
  absl::flat_hash_map<HandoffId, Parked> parked_;  // fetches that wait for their offer
  absl::flat_hash_map<TransferToken, InFlight> in_flight_;
  std::deque<HandoffId> turns_;  // open offers in the order of their next turn to send
  RecentIds over_;
  RecentIds released_;            // of these, the acknowledged ones
  std::uint64_t next_token_ = 1;  // odd tokens are ours, even ones the fetcher's
};

}  // namespace baton
