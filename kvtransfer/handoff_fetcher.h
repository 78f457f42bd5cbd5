#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "kvtransfer/connection_table.h"
#include "kvtransfer/fetch_pieces.h"
#include "kvtransfer/recent_ids.h"
#include "kvtransfer/transfer_types.h"
#include "kvtransfer/transport.h"
#include "kvtransfer/wire.h"

namespace baton {

// Decode side: asks for blocks, decides for each arriving piece whether and where it may be
// written, verifies it, and reports one end.
//
// Blocks come in DATA messages, or are read from the peer's pool as it announces them: then the
// peer must say, after the last read, that they had stayed as they were, before the fetch has
// landed. When a transport fails in the middle, the fetch moves to the next one that both sides
// have; what has landed is kept.
//
// Only blocks of an open fetch are ever named to the transport, and each piece of them once at a
// time. A fetch that has ended stays here, in quarantine, until the transport has let go of what
// was named; then its pin is dropped.
//
// Not thread-safe: used only by the transfer thread.
class HandoffFetcher {
 public:
  // All outlive the fetcher.
  HandoffFetcher(const TransferOptions& options,
                 ConnectionTable& connections,
                 const Transport& transport,
                 TransferStats& stats);

  void Start(FetchRequest request);
  void Cancel(HandoffId id);

  // From peers; a reason when the message was dropped.
  ReceivePlan OnData(const Connection& connection,
                     const wire::Data& data,
                     std::size_t payload_bytes,
                     std::optional<DropReason>& dropped);
  std::optional<DropReason> OnReady(const Connection& connection, const wire::Ready& ready);
  std::optional<DropReason> OnComplete(const Connection& connection,
                                       const wire::Complete& complete);
  std::optional<DropReason> OnReleased(const Connection& connection,
                                       const wire::Released& released);
  std::optional<DropReason> OnError(const Connection& connection, const wire::Error& error);

  void OnReceived(TransferToken token, const absl::Status& status);
  void OnConnected(Connection& connection);
  void OnLost(PeerId peer, const absl::Status& why);
  std::vector<HandoffId> OpenOn(PeerId peer) const;

  void Tick(TimePoint now);

  // Ends every fetch; FinishAll also drops the pins still held. REQUIRES for FinishAll: the
  // transport is gone.
  void EndAll(const absl::Status& why);
  void FinishAll();

  bool empty() const { return fetches_.empty(); }

 private:
  struct Entry {
    FetchRequest request;
    DecodeHandoffState state = DecodeHandoffState::kLeased;
    std::vector<Route> routes;  // to the peer, in the order to try
    std::size_t route = 0;      // in use
    std::vector<Way> ways;      // of the connection in use
    std::size_t way = 0;        // in use
    std::optional<PeerId> source;
    std::optional<absl::Status> moving;  // why; set until the last receive is over
    absl::Status first_failure;          // of a way
    FetchPieces pieces;
    int receives = 0;  // messages whose memory is named to the transport
    std::uint32_t round = 1;
    std::uint32_t first_round = 1;  // of the way in use
    bool all_said = false;          // the prefill side has sent or announced all of this round
    TimePoint ask_again;            // when landed but for the peer's confirmation
    bool checksum_failed = false;
    FetchStats stats;
    TimePoint receiving_since;  // when receives > 0
    std::size_t progress = 0;   // bytes that the sink knows of
    TimePoint let_go_deadline;  // once ended

    Entry(FetchRequest of, const PoolRegion& pool)
        : request(std::move(of)), pieces(pool, std::move(request.blocks)) {}
    bool ended() const { return IsEnd(state) || state == DecodeHandoffState::kLanded; }
    PoolReader* reader() const { return way < ways.size() ? ways[way].reader : nullptr; }
  };
  struct Receive {
    HandoffId handoff;
    PieceRange pieces;
    std::uint32_t crc32c = 0;
    bool checksum_follows = false;           // `crc32c` comes with the payload instead
    bool verified = false;                   // by Verify
    std::shared_ptr<CopiedChecksum> copied;  // shared with the plan; null for some reads
  };

  TimePoint Now() const { return options_.clock->Now(); }
  Entry* FindOpen(HandoffId id);
  std::optional<DropReason> WhyUnknown(HandoffId id) const;
  std::optional<DropReason> CheckSender(const Entry& entry,
                                        const Connection& connection,
                                        std::uint64_t epoch) const;
  // What a peer says of pieces, before any memory is named for them.
  static std::optional<DropReason> CheckPieces(const Entry& entry,
                                               std::uint32_t round,
                                               const PieceRange& pieces);
  TransferToken BeginReceive(Entry& entry, Receive receive);
  // Of a pool in host memory.
  bool ChecksumHolds(const Entry& entry, const Receive& receive) const;
  // Of any other: on the payload's way there. Remembered in the receive.
  bool Verify(TransferToken token, ConstParts payload);
  // Whether a payload has the checksum that its sender said.
  bool Matches(const Receive& receive, ConstParts payload) const;

  void ReportProgress();
  void SendFetch(Entry& entry);
  void NextRound(Entry& entry);
  void AskAgainOrMove(Entry& entry);
  // Leaves the way in use for the next one, or fails when there is none.
  void Move(Entry& entry, const absl::Status& why);
  void MoveNow(Entry& entry);
  void TakeRoute(Entry& entry, Duration patience);
  void LandOrConfirm(Entry& entry);
  void Land(Entry& entry);
  void Fail(Entry& entry, absl::Status why);  // by value: `entry` may go, and with it what it says
  void ForgetIfLetGo(HandoffId id);

  const TransferOptions& options_;
  ConnectionTable& connections_;
  const Transport& transport_;
  TransferStats& stats_;
  absl::flat_hash_map<HandoffId, std::unique_ptr<Entry>> fetches_;
  absl::flat_hash_map<TransferToken, Receive> receives_;
  RecentIds over_;
  TimePoint next_report_;         // of progress
  std::uint64_t next_token_ = 2;  // even tokens are ours, odd ones the server's
};

}  // namespace baton
