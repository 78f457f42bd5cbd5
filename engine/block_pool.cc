#include "engine/block_pool.h"

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace baton {

BlockLease& BlockLease::operator=(BlockLease&& other) noexcept {
  if (this != &other) {
    Release();
    pool_ = std::exchange(other.pool_, nullptr);
    generation_ = other.generation_;
    blocks_ = std::exchange(other.blocks_, {});
  }
  return *this;
}

BlockLease BlockLease::Share() const {
  for (const BlockId block : blocks_) {
    pool_->Pin(block);
  }
  return BlockLease(pool_, generation_, blocks_);
}

void BlockLease::Append(BlockLease more) {
  if (pool_ == nullptr) {
    *this = std::move(more);
    return;
  }
  BATON_CHECK(more.pool_ == pool_ || more.blocks_.empty());
  blocks_.insert(blocks_.end(), more.blocks_.begin(), more.blocks_.end());
  more.blocks_.clear();
}

void BlockLease::Truncate(int count) {
  while (size() > count) {
    pool_->Unpin(blocks_.back());
    blocks_.pop_back();
  }
}

BlockPool::BlockPool(int blocks) : pins_(static_cast<std::size_t>(blocks), 0) {
  free_.reserve(pins_.size());
  for (int i = blocks - 1; i >= 0; --i) {
    free_.emplace_back(static_cast<std::uint32_t>(i));
  }
}

std::optional<BlockLease> BlockPool::Lease(int count) {
  if (count < 0 || count > free()) {
    return std::nullopt;
  }
  std::vector<BlockId> blocks(free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - static_cast<std::size_t>(count));
  for (const BlockId block : blocks) {
    Pin(block);
  }
  return BlockLease(this, ++generation_, std::move(blocks));
}

absl::Status BlockPool::CheckInvariants() const {
  std::vector<bool> is_free(pins_.size(), false);
  for (const BlockId block : free_) {
    if (block.value() >= pins_.size() || is_free[block.value()]) {
      return absl::InternalError(absl::StrCat("block ", block.value(), " is free twice"));
    }
    is_free[block.value()] = true;
  }
  for (std::size_t i = 0; i < pins_.size(); ++i) {
    if (is_free[i] == (pins_[i] > 0)) {
      return absl::InternalError(
          absl::StrCat("block ", i, is_free[i] ? " is free and has " : " is not free and has ",
                       pins_[i], " pins"));
    }
  }
  return absl::OkStatus();
}

void BlockPool::Pin(BlockId block) {
  ++pins_.at(block.value());
}

void BlockPool::Unpin(BlockId block) {
  std::uint32_t& pins = pins_.at(block.value());
  BATON_CHECK(pins > 0);
  if (--pins == 0) {
    free_.push_back(block);
  }
}

}  // namespace baton
