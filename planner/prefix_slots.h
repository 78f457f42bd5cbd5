#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

#include "planner/python_random.h"

namespace baton {

// Which prefix leaves a full cache.
enum class Eviction {
  kFirstIn,      // the one that came first
  kLeastRecent,  // the one whose last use is longest ago
  kRandom,       // any, the one just added too: what set.pop() of a Python set does
};

// A cache that holds a bounded number of prefixes. Not thread-safe.
class PrefixSlots {
 public:
  // `slots` absent: without bound.
  PrefixSlots(std::optional<int> slots, Eviction eviction, std::uint64_t seed = 0)
      : slots_(slots), eviction_(eviction), random_(seed) {}

  bool Contains(int prefix) const { return places_.contains(prefix); }
  // Marks a prefix that is present as used now.
  void Touch(int prefix);
  // Adds a prefix that is absent; true when one was evicted for it.
  bool Insert(int prefix);
  bool ever_used() const { return ever_used_; }

 private:
  std::optional<int> slots_;
  Eviction eviction_;
  PythonRandom random_;
  std::list<int> order_;  // the first to leave is in front
  std::unordered_map<int, std::list<int>::iterator> places_;
  bool ever_used_ = false;
};

}  // namespace baton
