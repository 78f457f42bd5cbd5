#include "bench/simulated_cache.h"

namespace baton {

std::size_t SimulatedCache::Matched(std::span<const PrefixHash> chain) const {
  std::size_t blocks = 0;
  while (blocks < chain.size() && places_.contains(chain[blocks])) {
    ++blocks;
  }
  return blocks;
}

SimulatedCache::Changes SimulatedCache::Use(std::span<const PrefixHash> chain) {
  Changes changes;
  // From its end, so that a block is always used later than those that follow it.
  for (std::size_t i = chain.size(); i-- > 0;) {
    const auto found = places_.find(chain[i]);
    if (found != places_.end()) {
      by_use_.splice(by_use_.begin(), by_use_, found->second);
      continue;
    }
    by_use_.push_front(chain[i]);
    places_.emplace(chain[i], by_use_.begin());
    changes.stored.push_back(chain[i]);
  }
  while (most_blocks_.has_value() && places_.size() > *most_blocks_) {
    changes.removed.push_back(by_use_.back());
    places_.erase(by_use_.back());
    by_use_.pop_back();
  }
  return changes;
}

}  // namespace baton
