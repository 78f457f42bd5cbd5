#pragma once

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "tests/kvtransfer/transfer_harness.h"

namespace baton {

// Hands out the blocks of a TestPool as a worker's allocator does, and poisons every block that
// comes back: who still reads it sees the poison, and who still writes it is found out when the
// block is handed out again. Thread-safe; outlives its leases.
class BlockStock {
 public:
  // Blocks that are in use until the last owner of the lease is gone: the request, and the transfer
  // through its pin.
  class Lease {
   public:
    Lease(BlockStock& stock, std::vector<BlockId> blocks)
        : stock_(stock), blocks_(std::move(blocks)) {}
    ~Lease() { stock_.TakeBack(blocks_); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    const std::vector<BlockId>& blocks() const { return blocks_; }

   private:
    BlockStock& stock_;
    const std::vector<BlockId> blocks_;
  };

  BlockStock(TestPool& pool, int blocks) : pool_(pool), total_(blocks) {
    for (int i = 0; i < blocks; ++i) {
      free_.emplace_back(static_cast<std::uint32_t>(i));
    }
  }

  int total() const { return total_; }
  int free() const {
    absl::MutexLock lock(&mutex_);
    return static_cast<int>(free_.size());
  }
  // Blocks that were written to while nobody had them.
  int late_writes() const {
    absl::MutexLock lock(&mutex_);
    return late_writes_;
  }

  // Waits until there are as many; null when that takes longer than a test waits.
  std::shared_ptr<const Lease> Take(int count) {
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return static_cast<int>(free_.size()) >= count;
    };
    absl::MutexLock lock(&mutex_);
    if (!mutex_.AwaitWithTimeout(absl::Condition(&enough), absl::FromChrono(kTestPatience))) {
      return nullptr;
    }
    // The oldest: every block has its turn.
    std::vector<BlockId> taken(free_.begin(), free_.begin() + count);
    free_.erase(free_.begin(), free_.begin() + count);
    for (const BlockId block : taken) {
      late_writes_ += pool_.IsUntouched(block) ? 0 : 1;
    }
    return std::make_shared<const Lease>(*this, std::move(taken));
  }

  // Looks at every free block.
  void CheckPoison() {
    absl::MutexLock lock(&mutex_);
    for (const BlockId block : free_) {
      late_writes_ += pool_.IsUntouched(block) ? 0 : 1;
    }
  }

 private:
  void TakeBack(const std::vector<BlockId>& blocks) {
    absl::MutexLock lock(&mutex_);
    for (const BlockId block : blocks) {
      std::memset(pool_.block(block), static_cast<int>(TestPool::kCanary),
                  pool_.layout().block_bytes());
      free_.push_back(block);
    }
  }

  TestPool& pool_;
  const int total_;
  mutable absl::Mutex mutex_;
  std::vector<BlockId> free_ ABSL_GUARDED_BY(mutex_);
  int late_writes_ ABSL_GUARDED_BY(mutex_) = 0;
};

class LeasePin final : public RegionPin {
 public:
  explicit LeasePin(std::shared_ptr<const BlockStock::Lease> lease) : lease_(std::move(lease)) {}

 private:
  const std::shared_ptr<const BlockStock::Lease> lease_;  // shared with the request
};

}  // namespace baton
