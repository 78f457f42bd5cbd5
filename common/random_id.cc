#include "common/random_id.h"

#include <sys/random.h>

#include "common/check.h"

namespace baton {

void FillRandom(std::uint8_t* bytes, std::size_t count) {
  std::size_t done = 0;
  while (done < count) {
    const ssize_t got = getrandom(bytes + done, count - done, 0);
    BATON_CHECK(got > 0 || (got < 0 && errno == EINTR));
    done += got > 0 ? static_cast<std::size_t>(got) : 0;
  }
}

}  // namespace baton
