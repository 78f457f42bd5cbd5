#include "common/check.h"

#include <cstdio>
#include <cstdlib>

namespace baton {

void CheckFailed(std::string_view text, std::source_location where) {
  std::fprintf(stderr, "%s:%u: check failed: %.*s\n", where.file_name(),
               static_cast<unsigned>(where.line()), static_cast<int>(text.size()), text.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace baton
