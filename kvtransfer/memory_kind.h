#pragma once

#include <cstdint>

namespace baton {

// Where the bytes of a range of addresses are. Device memory has addresses like the host's, which
// the host must never read or write.
enum class MemoryKind : std::uint8_t { kHost, kCudaDevice };

}  // namespace baton
