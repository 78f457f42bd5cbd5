#pragma once

#include <source_location>
#include <string_view>

namespace baton {

// Prints `file:line: check failed: text` to standard error and aborts.
[[noreturn]] void CheckFailed(std::string_view text,
                              std::source_location where = std::source_location::current());

}  // namespace baton

// BATON_CHECK(condition): on in every build. For invariants whose violation would corrupt memory or a user's
// tokens; never for anything that a peer, a file, a flag or a device can cause.
#define BATON_CHECK(condition)           \
  do {                                   \
    if (!(condition)) {                  \
      ::baton::CheckFailed(#condition);  \
    }                                    \
  } while (false)

// BATON_DCHECK(condition): the same, for checks too dear for a release build.
#ifdef NDEBUG
#define BATON_DCHECK(condition) \
  do {                          \
  } while (false)
#else
#define BATON_DCHECK(condition) BATON_CHECK(condition)
#endif
