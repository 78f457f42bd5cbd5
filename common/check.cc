#include "common/check.h"

#include <cstdio>
#include <cstdlib>

namespace baton {

void CheckFailed(const char* file, int line, std::string_view text) {
  std::fprintf(stderr, "%s:%d: check failed: %.*s\n", file, line, static_cast<int>(text.size()),
               text.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace baton
