#include "bench/transfer_pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace baton {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15u;

// First word of one layer of one block; each later word is kStep more than the one before.
std::uint64_t FirstWord(int round, std::size_t index, int layer) {
  std::uint64_t word = (static_cast<std::uint64_t>(round) << 40) ^
                       (static_cast<std::uint64_t>(index) << 12) ^
                       static_cast<std::uint64_t>(layer);
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
  return word ^ (word >> 31);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TransferPool>> TransferPool::Create(const TransferShape& shape,
                                                                   PoolMemory memory) {
  // Layers are filled and compared in whole words.
  BATON_CHECK(shape.layer_bytes % sizeof(std::uint64_t) == 0);
  const std::size_t bytes = shape.block_bytes() * static_cast<std::size_t>(shape.pool_blocks());
  std::size_t mapping_bytes = bytes;
  UniqueFd file;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  if (memory == PoolMemory::kSharedFile) {
    // As in a prefill worker whose pool is mapped by others: sealed, with room behind the pool.
    mapping_bytes += kPageBytes;
    file = UniqueFd(memfd_create("transfer-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!file.ok() || ftruncate(file.get(), static_cast<off_t>(mapping_bytes)) != 0 ||
        fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("pool of ", bytes, " bytes of shared memory: ", std::strerror(errno)));
    }
    flags = MAP_SHARED | MAP_POPULATE;
  }
  void* base = mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE, flags, file.get(), 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("pool of ", bytes, " bytes: ", std::strerror(errno)));
  }
  if (memory == PoolMemory::kHugePages) {
    madvise(base, bytes, MADV_HUGEPAGE);  // best effort, as in the workers
  }
  std::memset(base, 0, bytes);
  return std::unique_ptr<TransferPool>(
      new TransferPool(shape, std::move(file), static_cast<std::byte*>(base)));
}

TransferPool::~TransferPool() {
  munmap(base_, file_bytes());
}

std::size_t TransferPool::file_bytes() const {
  return size_bytes() + (file_.ok() ? kPageBytes : 0);
}

std::vector<BlockId> TransferPool::Scatter(int round, Side side) const {
  std::vector<std::uint32_t> order(static_cast<std::size_t>(shape_.pool_blocks()));
  std::iota(order.begin(), order.end(), 0u);
  std::mt19937_64 random(static_cast<std::uint64_t>(round) * 2 + (side == Side::kSource ? 0 : 1));
  std::shuffle(order.begin(), order.end(), random);
  std::vector<BlockId> blocks;
  for (int i = 0; i < shape_.blocks; ++i) {
    blocks.emplace_back(order[static_cast<std::size_t>(i)]);
  }
  return blocks;
}

std::span<std::byte> TransferPool::Layer(BlockId block, int layer) const {
  return {base_ + block.value() * shape_.block_bytes() +
              static_cast<std::size_t>(layer) * shape_.layer_bytes,
          shape_.layer_bytes};
}

void TransferPool::Fill(const std::vector<BlockId>& blocks, int round) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    for (int layer = 0; layer < shape_.layers; ++layer) {
      const std::span<std::byte> bytes = Layer(blocks[i], layer);
      std::uint64_t word = FirstWord(round, i, layer);
      for (std::size_t at = 0; at < bytes.size(); at += sizeof(word), word += kStep) {
        std::memcpy(&bytes[at], &word, sizeof(word));
      }
    }
  }
}

bool TransferPool::Holds(const std::vector<BlockId>& blocks, int round) const {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    for (int layer = 0; layer < shape_.layers; ++layer) {
      const std::span<const std::byte> bytes = Layer(blocks[i], layer);
      std::uint64_t expected = FirstWord(round, i, layer);
      std::uint64_t difference = 0;
      for (std::size_t at = 0; at < bytes.size(); at += sizeof(expected), expected += kStep) {
        std::uint64_t word = 0;
        std::memcpy(&word, &bytes[at], sizeof(word));
        difference |= word ^ expected;
      }
      if (difference != 0) {
        std::fprintf(stderr, "round %d: block %zu of the transfer differs in layer %d\n", round, i,
                     layer);
        return false;
      }
    }
  }
  return true;
}

std::vector<std::span<std::byte>> TransferPool::Pieces(const std::vector<BlockId>& blocks,
                                                       Piece piece) const {
  std::vector<std::span<std::byte>> pieces;
  if (piece == Piece::kBlock) {
    for (const BlockId block : blocks) {
      pieces.emplace_back(Layer(block, 0).data(), shape_.block_bytes());
    }
    return pieces;
  }
  for (int layer = 0; layer < shape_.layers; ++layer) {
    for (const BlockId block : blocks) {
      pieces.push_back(Layer(block, layer));
    }
  }
  return pieces;
}

PoolRegion TransferPool::region() const {
  return {.base = base_, .layout = shape_.layout(), .blocks = shape_.pool_blocks()};
}

}  // namespace baton
