#pragma once

#include <cstdint>

#include "common/crc32c.h"
#include "kvtransfer/transport.h"

namespace baton {

// CRC32C over all parts as if they were one. REQUIRES: host memory.
inline std::uint32_t Checksum(ConstParts payload) {
  std::uint32_t crc = 0;
  for (const std::span<const std::byte> part : payload) {
    crc = Crc32c({reinterpret_cast<const char*>(part.data()), part.size()}, crc);
  }
  return crc;
}

}  // namespace baton
