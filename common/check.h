#pragma once

#include <string_view>

namespace baton {

// Prints `file:line: check failed: text` to standard error and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, std::string_view text);

}  // namespace baton

// BATON_CHECK(condition): on in every build. For invariants whose violation would corrupt memory or
// a user's tokens; never for anything that a peer, a file, a flag or a device can cause.
#define BATON_CHECK(condition)                              \
  do {                                                      \
    if (!(condition)) {                                     \
      ::baton::CheckFailed(__FILE__, __LINE__, #condition); \
    }                                                       \
  } while (false)

// BATON_DCHECK(condition): the same, for checks too dear for a release build.
#ifdef NDEBUG
#define BATON_DCHECK(condition) \
  do {                          \
  } while (false)
#else
#define BATON_DCHECK(condition) BATON_CHECK(condition)
#endif
