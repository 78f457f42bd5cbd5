#include "kvtransfer/transport.h"

#include <atomic>

namespace baton {

PeerId MakePeerId() {
  static std::atomic<std::uint64_t> next{1};
  return PeerId(next.fetch_add(1, std::memory_order_relaxed));
}

}  // namespace baton
