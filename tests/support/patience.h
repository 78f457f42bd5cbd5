#pragma once

#include <chrono>

namespace baton {

// How long something may take that has no promise of its own, on a machine that does much else.
inline constexpr std::chrono::milliseconds kPatience = std::chrono::seconds(60);

// A promised time (DESIGN.md) as a test holds it: sanitizer builds, in which everything is several
// times slower, get correspondingly more.
constexpr std::chrono::milliseconds Promised(std::chrono::milliseconds time) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 5 * time;
#else
  return time;
#endif
}

}  // namespace baton
