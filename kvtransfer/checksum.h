#pragma once

#include <cstddef>
#include <cstdint>

#include "kvtransfer/transport.h"

namespace baton {

// CRC32C over all parts as if they were one. REQUIRES: host memory.
std::uint32_t Checksum(ConstParts payload);

// Copies `bytes` from `from` to `to`, which must not overlap; many go past the cache on their way
// out, as nobody reads them soon. REQUIRES: host memory.
void StreamCopy(std::byte* to, const std::byte* from, std::size_t bytes);

// The same, and the CRC32C of what it has read, continuing `previous`. One pass over memory for
// both, and cheaper than a plain memcpy of bytes that are not in the cache.
std::uint32_t CopyWithChecksum(std::byte* to,
                               const std::byte* from,
                               std::size_t bytes,
                               std::uint32_t previous);

}  // namespace baton
