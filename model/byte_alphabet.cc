#include "model/byte_alphabet.h"

#include <array>
#include <cstddef>

namespace baton {
namespace {

constexpr std::size_t kBytes = 256;
constexpr std::uint32_t kFirstStandIn = 0x100;

constexpr bool IsItsOwnCharacter(std::size_t byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

// Code point by byte.
constexpr std::array<std::uint32_t, kBytes> MakeCodePoints() {
  std::array<std::uint32_t, kBytes> code_points{};
  std::uint32_t next = kFirstStandIn;
  for (std::size_t byte = 0; byte < kBytes; ++byte) {
    code_points[byte] = IsItsOwnCharacter(byte) ? static_cast<std::uint32_t>(byte) : next++;
  }
  return code_points;
}

constexpr auto kCodePoints = MakeCodePoints();

// The byte whose character is `code_point`.
std::optional<std::uint8_t> FindByte(std::uint32_t code_point) {
  for (std::size_t byte = 0; byte < kBytes; ++byte) {
    if (kCodePoints[byte] == code_point) {
      return static_cast<std::uint8_t>(byte);
    }
  }
  return std::nullopt;
}

}  // namespace

std::string AlphabetCharacter(std::uint8_t byte) {
  const std::uint32_t code_point = kCodePoints[byte];
  if (code_point < 0x80) {
    return std::string(1, static_cast<char>(code_point));
  }
  // No character of the alphabet is above U+07FF.
  return {static_cast<char>(0xc0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3f))};
}

std::optional<std::string> BytesOfAlphabetText(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::uint32_t code_point = static_cast<unsigned char>(text[i]);
    if (code_point >= 0x80) {
      const bool two_bytes = (code_point & 0xe0) == 0xc0 && i + 1 < text.size() &&
                             (static_cast<unsigned char>(text[i + 1]) & 0xc0) == 0x80;
      if (!two_bytes) {
        return std::nullopt;
      }
      ++i;
      code_point = (code_point & 0x1f) << 6 | (static_cast<unsigned char>(text[i]) & 0x3f);
    }
    const auto byte = FindByte(code_point);
    if (!byte.has_value()) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(*byte));
  }
  return bytes;
}

}  // namespace baton
