#include "common/trace_context.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/random_id.h"
#include "common/sha256.h"

namespace baton {
namespace {

constexpr std::size_t kLength = 55;  // of version 00
constexpr std::uint8_t kSampled = 0x01;

std::optional<std::uint8_t> HexDigit(char digit) {
  if (digit >= '0' && digit <= '9') {
    return static_cast<std::uint8_t>(digit - '0');
  }
  if (digit >= 'a' && digit <= 'f') {
    return static_cast<std::uint8_t>(digit - 'a' + 10);
  }
  return std::nullopt;
}

template <std::size_t N>
std::optional<std::array<std::uint8_t, N>> FromHex(std::string_view text) {
  std::array<std::uint8_t, N> bytes{};
  for (std::size_t i = 0; i < N; ++i) {
    const std::optional<std::uint8_t> high = HexDigit(text[2 * i]);
    const std::optional<std::uint8_t> low = HexDigit(text[2 * i + 1]);
    if (!high.has_value() || !low.has_value()) {
      return std::nullopt;
    }
    bytes[i] = static_cast<std::uint8_t>(*high << 4 | *low);
  }
  return bytes;
}

template <std::size_t N>
bool IsZero(const std::array<std::uint8_t, N>& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::uint8_t byte) { return byte == 0; });
}

template <std::size_t N>
std::string Hex(const std::array<std::uint8_t, N>& bytes) {
  return ToHex(std::string_view(reinterpret_cast<const char*>(bytes.data()), N));
}

// Never all zero, which would mean "none".
template <std::size_t N>
std::array<std::uint8_t, N> RandomBytes() {
  std::array<std::uint8_t, N> bytes{};
  do {
    FillRandom(bytes.data(), N);
  } while (IsZero(bytes));
  return bytes;
}

}  // namespace

std::optional<TraceContext> TraceContext::Parse(std::string_view traceparent) {
  if (traceparent.size() < kLength || traceparent[2] != '-' || traceparent[35] != '-' ||
      traceparent[52] != '-') {
    return std::nullopt;
  }
  const auto version = FromHex<1>(traceparent.substr(0, 2));
  const auto trace_id = FromHex<16>(traceparent.substr(3, 32));
  const auto span_id = FromHex<8>(traceparent.substr(36, 16));
  const auto flags = FromHex<1>(traceparent.substr(53, 2));
  if (!version.has_value() || !trace_id.has_value() || !span_id.has_value() || !flags.has_value()) {
    return std::nullopt;
  }
  const bool longer = traceparent.size() > kLength;
  const bool known_form = version->at(0) == 0 ? !longer : !longer || traceparent[kLength] == '-';
  if (version->at(0) == 0xff || !known_form || IsZero(*trace_id) || IsZero(*span_id)) {
    return std::nullopt;
  }
  return TraceContext{
      .trace_id = *trace_id, .span_id = *span_id, .sampled = (flags->at(0) & kSampled) != 0};
}

TraceContext TraceContext::NewTrace() {
  return {.trace_id = RandomBytes<16>(), .span_id = RandomBytes<8>()};
}

TraceContext TraceContext::NewChild() const {
  return {.trace_id = trace_id, .span_id = RandomBytes<8>()};
}

std::string TraceContext::ToString() const {
  return absl::StrCat("00-", Hex(trace_id), "-", Hex(span_id), sampled ? "-01" : "-00");
}

}  // namespace baton
