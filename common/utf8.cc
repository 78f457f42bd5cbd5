#include "common/utf8.h"

namespace baton {
namespace {

struct Scan {
  std::size_t length = 0;   // bytes looked at: a whole character, or the longest well-formed
                            // beginning of one (at least 1)
  bool complete = false;    // a whole, well-formed character
  bool extensible = false;  // well formed so far, and the text ended
};

Scan ScanCharacter(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) {
    return {.length = 1, .complete = true};
  }
  std::size_t need = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xbf;
  if (lead >= 0xc2 && lead <= 0xdf) {
    need = 2;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    need = 3;
    low = lead == 0xe0 ? 0xa0 : 0x80;
    high = lead == 0xed ? 0x9f : 0xbf;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    need = 4;
    low = lead == 0xf0 ? 0x90 : 0x80;
    high = lead == 0xf4 ? 0x8f : 0xbf;
  } else {
    return {.length = 1};
  }
  std::size_t length = 1;
  while (length < need && length < text.size()) {
    if (byte(length) < low || byte(length) > high) {
      return {.length = length};
    }
    low = 0x80;
    high = 0xbf;
    ++length;
  }
  return {.length = length, .complete = length == need, .extensible = length < need};
}

}  // namespace

std::optional<std::size_t> FindInvalidUtf8(std::string_view text) {
  for (std::size_t offset = 0; offset < text.size();) {
    const Scan scan = ScanCharacter(text.substr(offset));
    if (!scan.complete) {
      return offset;
    }
    offset += scan.length;
  }
  return std::nullopt;
}

std::size_t CompleteUtf8Prefix(std::string_view text) {
  // A character has at most four bytes, so only a lead byte among the last three can be left open.
  const std::size_t first = text.size() < 3 ? 0 : text.size() - 3;
  for (std::size_t offset = first; offset < text.size(); ++offset) {
    const bool is_lead = (static_cast<unsigned char>(text[offset]) & 0xc0) == 0xc0;
    if (is_lead && ScanCharacter(text.substr(offset)).extensible) {
      return offset;
    }
  }
  return text.size();
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  for (std::size_t offset = 0; offset < text.size();) {
    const Scan scan = ScanCharacter(text.substr(offset));
    if (scan.complete) {
      clean.append(text.substr(offset, scan.length));
    } else {
      clean.append("\xef\xbf\xbd");
    }
    offset += scan.length;
  }
  return clean;
}

}  // namespace baton
