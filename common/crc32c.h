#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace baton {

// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78; RFC 3720 appendix B.4) of `bytes`. Passing
// the result of an earlier call as `previous` continues it, so that a scattered range needs no
// gathering.
std::uint32_t Crc32c(std::string_view bytes, std::uint32_t previous = 0);

// The same without the processor's help, and with its CRC32C instruction alone, which the processor
// must have (SSE4.2); public so that a test can compare them.
std::uint32_t Crc32cPortable(std::string_view bytes, std::uint32_t previous = 0);
std::uint32_t Crc32cSse42(std::string_view bytes, std::uint32_t previous = 0);

}  // namespace baton
