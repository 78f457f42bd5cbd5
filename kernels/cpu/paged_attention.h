#pragma once

#include <vector>

#include "absl/status/status.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/rope_table.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace baton {

// Rotates keys and writes keys and values into the pool. REQUIRES: arguments validated, pool in
// this backend's layout.
void WriteKv(const RotateAndWriteKvArgs& args,
             const CpuRopeTable& rope,
             const KernelTable& kernels,
             ThreadPool& pool);

// Cuts attention into tiles, neighbouring rows with the same list of segments times key/value
// heads, and hands them to the threads. A single row is bound by the way of its keys and values
// from memory, where all heads of a block lie side by side: it takes them together if that leaves
// enough for every thread. Keeps scratch memory between calls.
//
// Not thread-safe: used only by the engine thread.
class CpuPagedAttention {
 public:
  // Both must outlive this object.
  CpuPagedAttention(const KernelTable& kernels, ThreadPool& pool)
      : kernels_(kernels), pool_(pool) {}

  // REQUIRES: arguments validated, pool in this backend's layout. RESOURCE_EXHAUSTED when there is
  // no scratch memory.
  absl::Status Run(const PagedAttentionArgs& args, const CpuRopeTable& rope);

 private:
  // Rows [first, first + count) that share one list of segments.
  struct RowTile {
    int first;
    int count;
  };

  // What one thread does in one go.
  struct Share {
    RowTile rows;
    int head;   // the first
    int heads;  // key/value heads
  };

  void CutTiles(const PagedAttentionArgs& args, int most_rows);
  void CutShares(int kv_heads);
  void RunShare(const PagedAttentionArgs& args,
                const CpuRopeTable& rope,
                int index,
                float* scratch);
  AttentionAhead AheadOf(const PagedAttentionArgs& args, int index) const;

  const KernelTable& kernels_;
  ThreadPool& pool_;
  std::vector<RowTile> tiles_;
  std::vector<Share> shares_;
  std::vector<const BlockId*> entry_blocks_;  // [entries]
  AlignedArray<float> scratch_;               // one part for each thread
  std::size_t scratch_floats_ = 0;
};

}  // namespace baton
