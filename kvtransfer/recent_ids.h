#pragma once

#include <cstddef>
#include <deque>

#include "absl/container/flat_hash_set.h"
#include "common/random_id.h"

namespace baton {

// The last so many handoffs that have ended. Not thread-safe: used only by the transfer thread.
class RecentIds {
 public:
  explicit RecentIds(std::size_t capacity) : capacity_(capacity) {}

  void Insert(HandoffId id) {
    if (ids_.insert(id).second) {
      order_.push_back(id);
    }
    if (order_.size() > capacity_) {
      ids_.erase(order_.front());
      order_.pop_front();
    }
  }
  bool Contains(HandoffId id) const { return ids_.contains(id); }

 private:
  const std::size_t capacity_;
  absl::flat_hash_set<HandoffId> ids_;
  std::deque<HandoffId> order_;  // oldest first
};

}  // namespace baton
