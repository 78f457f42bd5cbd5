#include "planner/prefix_slots.h"

#include <iterator>

#include "common/check.h"

namespace baton {

void PrefixSlots::Touch(int prefix) {
  if (eviction_ == Eviction::kLeastRecent) {
    order_.splice(order_.end(), order_, places_.at(prefix));
  }
}

bool PrefixSlots::Insert(int prefix) {
  BATON_CHECK(!Contains(prefix));
  ever_used_ = true;
  places_[prefix] = order_.insert(order_.end(), prefix);
  if (!slots_.has_value() || static_cast<int>(order_.size()) <= *slots_) {
    return false;
  }
  auto victim = order_.begin();
  if (eviction_ == Eviction::kRandom) {
    std::advance(victim, random_.Below(static_cast<std::uint32_t>(order_.size())));
  }
  places_.erase(*victim);
  order_.erase(victim);
  return true;
}

}  // namespace baton
