#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/transfer_shape.h"
#include "common/file.h"
#include "common/strong_id.h"
#include "kvtransfer/transfer_types.h"

namespace baton {

enum class PoolMemory {
  kHugePages,  // anonymous, with MADV_HUGEPAGE
  kSharedFile  // a memfd, with whatever pages shared memory has here: 4 KiB unless configured
};

// A pool of blocks, every page of it touched. The bytes of a block are known from the round and the
// block's place in the transfer, and differ from round to round, so that whoever receives them can
// check each one.
//
// Not thread-safe.
class TransferPool {
 public:
  static absl::StatusOr<std::unique_ptr<TransferPool>> Create(const TransferShape& shape,
                                                              PoolMemory memory);
  ~TransferPool();
  TransferPool(const TransferPool&) = delete;
  TransferPool& operator=(const TransferPool&) = delete;

  // Where the blocks of a round lie: all different, in no order. `side` tells source from
  // destination.
  enum class Side { kSource, kDestination };
  std::vector<BlockId> Scatter(int round, Side side) const;

  // Writes the bytes of `round` into `blocks`, which are in the order of the transfer.
  void Fill(const std::vector<BlockId>& blocks, int round);
  // Whether every byte of `blocks` is what Fill wrote on the other side; says on standard error
  // which block and layer are not.
  bool Holds(const std::vector<BlockId>& blocks, int round) const;

  // The pieces of `blocks` in the order in which they become ready.
  std::vector<std::span<std::byte>> Pieces(const std::vector<BlockId>& blocks, Piece piece) const;

  PoolRegion region() const;
  // Of kSharedFile; -1 otherwise.
  int fd() const { return file_.get(); }
  // Of the mapping: of kSharedFile there is a page more than the pool.
  std::size_t file_bytes() const;
  std::size_t size_bytes() const {
    return shape_.block_bytes() * static_cast<std::size_t>(shape_.pool_blocks());
  }

 private:
  TransferPool(const TransferShape& shape, UniqueFd file, std::byte* base)
      : shape_(shape), file_(std::move(file)), base_(base) {}
  std::span<std::byte> Layer(BlockId block, int layer) const;

  const TransferShape shape_;
  const UniqueFd file_;
  std::byte* const base_;  // owned mapping
};

}  // namespace baton
