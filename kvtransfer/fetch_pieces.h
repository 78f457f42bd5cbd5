#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kvtransfer/layer_set.h"
#include "kvtransfer/transfer_types.h"
#include "kvtransfer/wire.h"

namespace baton {

// What a message carries or announces: the same layers of several blocks.
struct PieceRange {
  LayerRange layers;
  std::vector<std::uint32_t> blocks;  // source indices
};

// Which pieces of one fetch have landed, which are arriving and which are missing, and where each
// goes. A piece is one layer of one block; blocks are named by their source index.
//
// Not thread-safe: used only by the transfer thread.
class FetchPieces {
 public:
  // `pool` outlives this. Sorts `blocks` by source index, for short lists of runs.
  FetchPieces(const PoolRegion& pool, std::vector<BlockMapping> blocks);

  // Everything a peer says about pieces, before any memory is named for them: blocks that are
  // wanted, strictly ascending, and layers of the layout.
  std::optional<DropReason> Check(const PieceRange& pieces) const;
  // Whether any of them has landed or is arriving. REQUIRES: Check has found nothing.
  bool IsHere(const PieceRange& pieces) const;

  // From here on the transport knows their memory, until Finish. REQUIRES for both: as IsHere.
  void Begin(const PieceRange& pieces);
  void Finish(const PieceRange& pieces, bool intact);

  // Where the layers of a block go. REQUIRES: as IsHere.
  std::span<std::byte> Destination(std::uint32_t source_index, LayerRange layers) const;
  std::size_t BytesOf(const PieceRange& pieces) const;

  bool all_landed() const { return missing_ == 0; }
  int missing() const { return missing_; }
  std::size_t blocks() const { return blocks_.size(); }
  int BlocksNotWhole() const;
  std::vector<int> WholeBlocks() const;  // ascending

  // What has not landed, in as few runs as can be said in one message; nullopt when there are too
  // many even if pieces of blocks that are not whole are asked for again.
  std::optional<std::vector<wire::BlockRun>> Missing();

 private:
  std::vector<wire::BlockRun> RunsOfMissing() const;
  LayerSet AllLayers() const { return LayerSet({0, pool_.layout.layers}); }

  const PoolRegion& pool_;
  std::vector<BlockMapping> blocks_;                          // ascending by source index
  absl::flat_hash_map<std::uint32_t, std::size_t> position_;  // in `blocks_`, by source index
  std::vector<LayerSet> landed_;                              // by position
  std::vector<LayerSet> arriving_;                            // likewise
  int missing_ = 0;
};

}  // namespace baton
