#include "kvtransfer/checksum.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "common/crc32c.h"

namespace baton {
namespace {

// What the checksum has just read is still in the first-level cache when it is copied.
constexpr std::size_t kStepBytes = std::size_t{4} * 1024;
constexpr std::size_t kLineBytes = 64;
// Shorter copies stay in the cache, where their reader finds them.
constexpr std::size_t kLeastStreamed = std::size_t{4} * 1024;

std::string_view AsText(const std::byte* bytes, std::size_t count) {
  return {reinterpret_cast<const char*>(bytes), count};
}

// Both write whole lines past the cache, so that they need not be fetched first.
// REQUIRES: `to` is aligned to a line, `bytes` a multiple of it.
__attribute__((target("avx512f"))) void StreamLines512(std::byte* to,
                                                       const std::byte* from,
                                                       std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kLineBytes) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
  }
}

void StreamLines128(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
}

// Leaves the order of its stores to the caller.
void CopyLines(std::byte* to, const std::byte* from, std::size_t bytes) {
  static const bool has_avx512 = __builtin_cpu_supports("avx512f") != 0;
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % kLineBytes;
  const std::size_t head = misaligned == 0 ? 0 : std::min(bytes, kLineBytes - misaligned);
  const std::size_t lines = (bytes - head) / kLineBytes * kLineBytes;
  std::memcpy(to, from, head);
  (has_avx512 ? StreamLines512 : StreamLines128)(to + head, from + head, lines);
  std::memcpy(to + head + lines, from + head + lines, bytes - head - lines);
}

}  // namespace

void StreamCopy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes < kLeastStreamed) {
    std::memcpy(to, from, bytes);
    return;
  }
  CopyLines(to, from, bytes);
  _mm_sfence();
}

std::uint32_t Checksum(ConstParts payload) {
  std::uint32_t crc = 0;
  for (const std::span<const std::byte> part : payload) {
    crc = Crc32c(AsText(part.data(), part.size()), crc);
  }
  return crc;
}

std::uint32_t CopyWithChecksum(std::byte* to,
                               const std::byte* from,
                               std::size_t bytes,
                               std::uint32_t previous) {
  if (bytes < kLeastStreamed) {
    std::memcpy(to, from, bytes);
    return Crc32c(AsText(from, bytes), previous);
  }
  std::uint32_t crc = previous;
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t step = std::min(kStepBytes, bytes - done);
    crc = Crc32c(AsText(from + done, step), crc);
    CopyLines(to + done, from + done, step);
    done += step;
  }
  _mm_sfence();  // streamed stores are ordered with nothing else
  return crc;
}

}  // namespace baton
