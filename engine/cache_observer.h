#pragma once

#include "common/block_hash.h"

namespace baton {

// Hears which blocks a prompt may find in an engine's prefix cache, pinned ones included. One cache
// never stores a hash twice without removing it in between.
//
// Called on the engine thread, which must not be held up: implementations note the change. What the
// cache still holds when the engine ends is not reported as removed.
class CacheObserver {
 public:
  virtual ~CacheObserver() = default;
  virtual void OnStored(const PrefixHash& hash) = 0;
  virtual void OnRemoved(const PrefixHash& hash) = 0;
};

}  // namespace baton
