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
    pool_->PinOne(block);
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

void BlockLease::Replace(int index, BlockId block) {
  BlockId& held = blocks_.at(static_cast<std::size_t>(index));
  pool_->PinOne(block);
  pool_->Unpin(held);
  held = block;
}

void BlockLease::Truncate(int count) {
  while (size() > count) {
    pool_->Unpin(blocks_.back());
    blocks_.pop_back();
  }
}

BlockPool::BlockPool(int blocks) : states_(static_cast<std::size_t>(blocks)) {
  free_.reserve(states_.size());
  for (int i = blocks - 1; i >= 0; --i) {
    free_.emplace_back(static_cast<std::uint32_t>(i));
  }
}

std::optional<BlockLease> BlockPool::Lease(int count) {
  if (count < 0 || count > free()) {
    return std::nullopt;
  }
  while (static_cast<int>(free_.size()) < count) {
    for (const BlockId block : keeper_->GiveUp()) {
      State& state = states_.at(block.value());
      BATON_CHECK(state.kept);
      state.kept = false;
      --kept_;
      free_.push_back(block);
    }
  }
  std::vector<BlockId> blocks(free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - static_cast<std::size_t>(count));
  for (const BlockId block : blocks) {
    ++states_.at(block.value()).pins;
  }
  return BlockLease(this, ++generation_, std::move(blocks));
}

BlockLease BlockPool::Pin(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    PinOne(block);
  }
  return BlockLease(this, ++generation_, {blocks.begin(), blocks.end()});
}

absl::Status BlockPool::CheckInvariants() const {
  std::vector<bool> is_free(states_.size(), false);
  for (const BlockId block : free_) {
    if (block.value() >= states_.size() || is_free[block.value()]) {
      return absl::InternalError(absl::StrCat("block ", block.value(), " is free twice"));
    }
    is_free[block.value()] = true;
  }
  int kept = 0;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const int places = (is_free[i] ? 1 : 0) + (states_[i].kept ? 1 : 0) + (states_[i].pins > 0);
    if (places != 1) {
      return absl::InternalError(absl::StrCat("block ", i, is_free[i] ? " is free," : "",
                                              states_[i].kept ? " is kept," : "", " has ",
                                              states_[i].pins, " pins"));
    }
    kept += states_[i].kept ? 1 : 0;
  }
  if (kept != kept_) {
    return absl::InternalError(absl::StrCat(kept, " blocks are kept, counted are ", kept_));
  }
  return absl::OkStatus();
}

void BlockPool::PinOne(BlockId block) {
  State& state = states_.at(block.value());
  BATON_CHECK(state.pins > 0 || state.kept);
  if (state.kept) {
    state.kept = false;
    --kept_;
    keeper_->OnPinned(block);
  }
  ++state.pins;
}

void BlockPool::Unpin(BlockId block) {
  State& state = states_.at(block.value());
  BATON_CHECK(state.pins > 0);
  if (--state.pins > 0) {
    return;
  }
  if (keeper_ != nullptr && keeper_->Keep(block)) {
    state.kept = true;
    ++kept_;
  } else {
    free_.push_back(block);
  }
}

}  // namespace baton
