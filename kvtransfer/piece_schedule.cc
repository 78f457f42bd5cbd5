#include "kvtransfer/piece_schedule.h"

#include <algorithm>

#include "common/check.h"

namespace baton {

void PieceSchedule::MarkReady(const ReadyRange& range) {
  BATON_CHECK(range.first_block >= 0 && range.block_count >= 0 &&
              range.block_count <= static_cast<int>(blocks()) - range.first_block);
  BATON_CHECK(range.first_layer >= 0 && range.layer_count >= 0 &&
              range.layer_count <= layout_.layers - range.first_layer);
  const LayerSet layers({range.first_layer, range.layer_count});
  for (int block = range.first_block; block < range.first_block + range.block_count; ++block) {
    const auto i = static_cast<std::size_t>(block);
    sendable_pieces_ += ((layers - ready_[i]) & unsent_[i]).Count();
    ready_[i] |= layers;
  }
}

std::optional<DropReason> PieceSchedule::Check(const std::vector<wire::BlockRun>& runs) const {
  std::vector<LayerSet> named(blocks());
  for (const wire::BlockRun& run : runs) {
    if (run.layer_count == 0 || std::uint32_t{run.first_layer} + run.layer_count >
                                    static_cast<std::uint32_t>(layout_.layers)) {
      return DropReason::kBadLayers;
    }
    if (run.count == 0 || std::uint64_t{run.first} + run.count > blocks()) {
      return DropReason::kBadBlocks;
    }
    const LayerSet layers({run.first_layer, run.layer_count});
    for (std::uint32_t block = run.first; block < run.first + run.count; ++block) {
      if (layers.Intersects(named[block])) {
        return DropReason::kBadBlocks;  // so the work is bounded by the pieces that there are
      }
      named[block] |= layers;
    }
  }
  return runs.empty() ? std::optional(DropReason::kBadBlocks) : std::nullopt;
}

void PieceSchedule::Want(const std::vector<wire::BlockRun>& runs) {
  WantNothing();
  for (const wire::BlockRun& run : runs) {
    const LayerSet wanted({run.first_layer, run.layer_count});
    for (std::uint32_t block = run.first; block < run.first + run.count; ++block) {
      blocks_wanted_ += unsent_[block].empty() ? 1 : 0;
      unsent_[block] |= wanted;
      unsent_pieces_ += run.layer_count;
      sendable_pieces_ += (wanted & ready_[block]).Count();
    }
  }
}

void PieceSchedule::WantNothing() {
  std::fill(unsent_.begin(), unsent_.end(), LayerSet());
  blocks_wanted_ = 0;
  unsent_pieces_ = 0;
  sendable_pieces_ = 0;
}

PieceSchedule::Selection PieceSchedule::Select(std::size_t most_bytes) const {
  Selection selection;
  LayerSet run;
  for (std::size_t block = 0; block < blocks(); ++block) {
    const LayerSet sendable = unsent_[block] & ready_[block];
    if (sendable.empty()) {
      continue;
    }
    if (selection.blocks.empty()) {
      selection.layers = sendable.FirstRun();
      const auto most_layers =
          static_cast<int>(std::max<std::size_t>(1, most_bytes / layout_.layer_bytes));
      selection.layers.count = std::min(selection.layers.count, most_layers);
      run = LayerSet(selection.layers);
    } else if (!sendable.Contains(run)) {
      continue;
    }
    const std::size_t piece_bytes =
        layout_.layer_bytes * static_cast<std::size_t>(selection.layers.count);
    if (!selection.blocks.empty() && (selection.bytes + piece_bytes > most_bytes ||
                                      selection.blocks.size() == wire::kMaxDataBlocks)) {
      break;
    }
    selection.blocks.push_back(static_cast<std::uint32_t>(block));
    selection.bytes += piece_bytes;
  }
  return selection;
}

void PieceSchedule::MarkSent(const Selection& selection) {
  const LayerSet sent(selection.layers);
  for (const std::uint32_t block : selection.blocks) {
    unsent_[block] -= sent;
  }
  const int pieces = selection.layers.count * static_cast<int>(selection.blocks.size());
  unsent_pieces_ -= pieces;
  sendable_pieces_ -= pieces;
}

}  // namespace baton
