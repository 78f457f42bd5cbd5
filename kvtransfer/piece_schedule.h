#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/kv_layout.h"
#include "kvtransfer/layer_set.h"
#include "kvtransfer/transfer_types.h"
#include "kvtransfer/wire.h"

namespace baton {

// Which pieces of one offer are ready, which are wanted and which have been sent, and what the next
// message carries. A piece is one layer of one block; blocks are named by their place in the offer.
//
// Not thread-safe: used only by the transfer thread.
class PieceSchedule {
 public:
  // The same layers of several blocks.
  struct Selection {
    LayerRange layers;
    std::vector<std::uint32_t> blocks;  // ascending
    std::size_t bytes = 0;
  };

  // `layout` outlives the schedule.
  PieceSchedule(const KvLayout& layout, std::size_t blocks)
      : layout_(layout), ready_(blocks), unsent_(blocks) {}

  std::size_t blocks() const { return ready_.size(); }

  // REQUIRES: the range lies in the offer and the layout.
  void MarkReady(const ReadyRange& range);

  // What is wrong with the runs that a peer wants: none, not in the offer or the layout, or a piece
  // twice.
  std::optional<DropReason> Check(const std::vector<wire::BlockRun>& runs) const;

  // Starts a round: what the runs say and nothing else is wanted. REQUIRES: Check has found
  // nothing.
  void Want(const std::vector<wire::BlockRun>& runs);
  void WantNothing();

  // Blocks of which any piece is wanted in this round.
  int blocks_wanted() const { return blocks_wanted_; }
  bool all_sent() const { return unsent_pieces_ == 0; }
  bool has_sendable() const { return sendable_pieces_ > 0; }

  // The lowest run of layers that the first block with anything to send has, and every later block
  // that has it too, up to `most_bytes` and a message's limit of blocks; at least one piece.
  // REQUIRES: has_sendable().
  Selection Select(std::size_t most_bytes) const;
  void MarkSent(const Selection& selection);

 private:
  const KvLayout& layout_;
  std::vector<LayerSet> ready_;
  std::vector<LayerSet> unsent_;  // wanted and not sent
  int blocks_wanted_ = 0;
  int unsent_pieces_ = 0;
  int sendable_pieces_ = 0;  // unsent and ready
};

}  // namespace baton
