#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/block_hash.h"
#include "router/worker_slot.h"

namespace baton {

struct WorkerBits;

// What of one prompt the workers hold. Reused from request to request: it allocates only to grow.
// Not thread-safe.
struct PrefixMatches {
  // [slot] how many leading blocks of the prompt the worker holds without a gap; as many entries as
  // the index has slots.
  std::vector<std::uint32_t> blocks;

  std::uint32_t of(WorkerSlot worker) const {
    return worker.value() < blocks.size() ? blocks[worker.value()] : 0;
  }
};

// Which worker holds which block of KV: exact, as the workers' events tell it.
//
// Bounded: what does not fit is left out and counted, and is not found then; nothing that was
// removed is ever found. Salt, zone, model and tokenizer are part of a hash, so a look-up finds
// only what the prompt may use.
//
// Thread-safe. A look-up waits for nobody. Changes of different workers may run at once; those of
// one worker come one at a time.
class PrefixIndex {
 public:
  struct Options {
    std::size_t most_entries = 16 << 20;  // pairs of block and worker
  };
  struct Stats {
    std::size_t entries = 0;     // pairs of block and worker
    std::size_t blocks = 0;      // different ones
    std::size_t bytes = 0;       // of memory that the index holds
    std::uint64_t left_out = 0;  // events that found no room, since the start
  };

  explicit PrefixIndex(const Options& options);
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // Of a hash that is there (is not there) already: nothing.
  void Add(WorkerSlot worker, std::span<const PrefixHash> hashes);
  void Remove(WorkerSlot worker, std::span<const PrefixHash> hashes);
  // Everything of these workers. One pass over the index, whatever their number; none when it holds
  // nothing of them.
  void Clear(std::span<const WorkerSlot> workers);
  void Clear(WorkerSlot worker) { Clear({&worker, 1}); }

  // `hashes` are those of the full blocks of a prompt, in order.
  void Match(std::span<const PrefixHash> hashes, PrefixMatches& matches) const;

  // Makes `holders` those of the first 32 * `words` workers of `among` that hold this block. Asking
  // for it a few blocks before has its memory at hand.
  void FindHolders(const PrefixHash& hash,
                   const WorkerBits& among,
                   std::size_t words,
                   WorkerBits& holders) const;
  void Prefetch(const PrefixHash& hash) const;
  std::uint32_t slots() const;  // one more than the highest worker that was ever there

  Stats stats() const;
  std::size_t entries_of(WorkerSlot worker) const;  // blocks

 private:
  class Table;
  const std::unique_ptr<Table> table_;
};

}  // namespace baton
