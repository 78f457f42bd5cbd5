#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "kvtransfer/connection_table.h"
#include "kvtransfer/layer_set.h"
#include "kvtransfer/transfer_types.h"
#include "kvtransfer/transport.h"
#include "kvtransfer/wire.h"

namespace baton {

// Decode side: asks for blocks, decides for each arriving piece whether and where it may be
// written, verifies it, and reports one end.
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
  std::optional<DropReason> OnComplete(const Connection& connection,
                                       const wire::Complete& complete);
  std::optional<DropReason> OnError(const Connection& connection, const wire::Error& error);

  void OnReceived(TransferToken token, const absl::Status& status);
  void OnReady(Connection& connection);
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
    std::optional<PeerId> source;
    // By source index: place in request.blocks, which is the "position" below.
    absl::flat_hash_map<std::uint32_t, std::size_t> position;
    std::vector<LayerSet> landed;    // by position
    std::vector<LayerSet> arriving;  // by position: named to the transport
    int missing_pieces = 0;          // pieces: one layer of one block
    int receives = 0;                // messages whose memory is named to the transport
    std::uint32_t round = 1;
    bool all_said = false;  // the prefill side has sent all of this round
    bool checksum_failed = false;
    FetchStats stats;
    TimePoint let_go_deadline;  // once ended

    bool ended() const { return IsEnd(state) || state == DecodeHandoffState::kLanded; }
  };
  struct Receive {
    HandoffId handoff;
    wire::Data data;
    bool verified = false;  // by Verify
  };

  TimePoint Now() const { return options_.clock->Now(); }
  Entry* FindOpen(HandoffId id);
  std::optional<DropReason> CheckSender(const Entry& entry,
                                        const Connection& connection,
                                        std::uint64_t epoch) const;
  std::optional<DropReason> CheckPieces(const Entry& entry,
                                        const wire::Data& data,
                                        std::size_t payload_bytes) const;
  std::span<std::byte> Piece(const Entry& entry,
                             std::uint32_t source_index,
                             LayerRange layers) const;
  // Of a pool in host memory.
  bool ChecksumHolds(const Entry& entry, const wire::Data& data) const;
  // Of any other: on the payload's way there. Remembered in the receive.
  bool Verify(TransferToken token, ConstParts payload);

  void SendFetch(Entry& entry);
  void AskAgainOrFail(Entry& entry);
  void Land(Entry& entry);
  void Fail(Entry& entry, const absl::Status& why);
  void ForgetIfLetGo(HandoffId id);

  const TransferOptions& options_;
  ConnectionTable& connections_;
  const Transport& transport_;
  TransferStats& stats_;
  absl::flat_hash_map<HandoffId, std::unique_ptr<Entry>> fetches_;
  absl::flat_hash_map<TransferToken, Receive> receives_;
  std::uint64_t next_token_ = 2;  // even tokens are ours, odd ones the server's
};

}  // namespace baton
