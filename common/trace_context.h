#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace baton {

// Where one unit of work stands in a trace: W3C Trace Context, the `traceparent` part. A value.
struct TraceContext {
  std::array<std::uint8_t, 16> trace_id{};  // of the whole trace; never all zero
  std::array<std::uint8_t, 8> span_id{};    // of this unit of work; never all zero
  bool sampled = true;                      // somebody keeps the spans of this trace

  // "00-<32 hex digits>-<16 hex digits>-<2 hex digits>", lower case. nullopt for anything else: a
  // wrong length or separator, upper case, an all-zero id, version ff. Of a version above 00 the
  // first 55 bytes count, and '-' must follow when there is more.
  static std::optional<TraceContext> Parse(std::string_view traceparent);

  // A trace of its own.
  static TraceContext NewTrace();
  // A new unit of work within this one's trace, to be recorded.
  TraceContext NewChild() const;

  // Version 00, 55 bytes.
  std::string ToString() const;

  friend auto operator<=>(const TraceContext&, const TraceContext&) = default;
};

}  // namespace baton
