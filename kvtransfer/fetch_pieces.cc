#include "kvtransfer/fetch_pieces.h"

#include <algorithm>
#include <utility>

namespace baton {

FetchPieces::FetchPieces(const PoolRegion& pool, std::vector<BlockMapping> blocks)
    : pool_(pool),
      blocks_(std::move(blocks)),
      landed_(blocks_.size()),
      arriving_(blocks_.size()),
      missing_(static_cast<int>(blocks_.size()) * pool.layout.layers) {
  std::sort(blocks_.begin(), blocks_.end(), [](const BlockMapping& a, const BlockMapping& b) {
    return a.source_index < b.source_index;
  });
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    position_[static_cast<std::uint32_t>(blocks_[i].source_index)] = i;
  }
}

std::optional<DropReason> FetchPieces::Check(const PieceRange& pieces) const {
  std::optional<std::uint32_t> previous;
  for (const std::uint32_t block : pieces.blocks) {
    if (!position_.contains(block) || (previous && block <= *previous)) {
      return DropReason::kBadBlocks;
    }
    previous = block;
  }
  if (!previous) {
    return DropReason::kBadBlocks;
  }
  if (pieces.layers.count == 0 || pieces.layers.first + pieces.layers.count > pool_.layout.layers) {
    return DropReason::kBadLayers;
  }
  return std::nullopt;
}

bool FetchPieces::IsHere(const PieceRange& pieces) const {
  const LayerSet layers(pieces.layers);
  return std::any_of(pieces.blocks.begin(), pieces.blocks.end(), [&](std::uint32_t block) {
    const std::size_t i = position_.at(block);
    return layers.Intersects(landed_[i]) || layers.Intersects(arriving_[i]);
  });
}

void FetchPieces::Begin(const PieceRange& pieces) {
  const LayerSet layers(pieces.layers);
  for (const std::uint32_t block : pieces.blocks) {
    arriving_[position_.at(block)] |= layers;
  }
}

void FetchPieces::Finish(const PieceRange& pieces, bool intact) {
  const LayerSet layers(pieces.layers);
  for (const std::uint32_t block : pieces.blocks) {
    const std::size_t i = position_.at(block);
    arriving_[i] -= layers;
    if (intact) {
      landed_[i] |= layers;
    }
  }
  if (intact) {
    missing_ -= pieces.layers.count * static_cast<int>(pieces.blocks.size());
  }
}

std::span<std::byte> FetchPieces::Destination(std::uint32_t source_index, LayerRange layers) const {
  const KvLayout& layout = pool_.layout;
  const BlockId block = blocks_[position_.at(source_index)].destination;
  return {pool_.base + block.value() * layout.block_bytes() +
              static_cast<std::size_t>(layers.first) * layout.layer_bytes,
          static_cast<std::size_t>(layers.count) * layout.layer_bytes};
}

std::size_t FetchPieces::BytesOf(const PieceRange& pieces) const {
  return pieces.blocks.size() * static_cast<std::size_t>(pieces.layers.count) *
         pool_.layout.layer_bytes;
}

int FetchPieces::BlocksNotWhole() const {
  return static_cast<int>(blocks_.size() - WholeBlocks().size());
}

std::vector<int> FetchPieces::WholeBlocks() const {
  std::vector<int> whole;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (landed_[i].Count() == pool_.layout.layers) {
      whole.push_back(blocks_[i].source_index);
    }
  }
  return whole;
}

std::optional<std::vector<wire::BlockRun>> FetchPieces::Missing() {
  std::vector<wire::BlockRun> runs = RunsOfMissing();
  if (runs.size() > wire::kMaxBlockRuns) {
    for (LayerSet& landed : landed_) {
      if (landed.Count() < pool_.layout.layers) {
        missing_ += landed.Count();
        landed = LayerSet();
      }
    }
    runs = RunsOfMissing();
  }
  return runs.size() > wire::kMaxBlockRuns ? std::nullopt : std::optional(std::move(runs));
}

// Neighbours that lack the same layers share their runs.
std::vector<wire::BlockRun> FetchPieces::RunsOfMissing() const {
  std::vector<wire::BlockRun> runs;
  for (std::size_t i = 0; i < blocks_.size();) {
    const LayerSet missing = AllLayers() - landed_[i];
    const std::size_t first = i;
    do {
      ++i;
    } while (i < blocks_.size() && blocks_[i].source_index == blocks_[i - 1].source_index + 1 &&
             AllLayers() - landed_[i] == missing);
    for (LayerSet rest = missing; !rest.empty(); rest -= LayerSet(rest.FirstRun())) {
      const LayerRange layers = rest.FirstRun();
      runs.push_back({.first = static_cast<std::uint32_t>(blocks_[first].source_index),
                      .count = static_cast<std::uint32_t>(i - first),
                      .first_layer = static_cast<std::uint16_t>(layers.first),
                      .layer_count = static_cast<std::uint16_t>(layers.count)});
    }
  }
  return runs;
}

}  // namespace baton
