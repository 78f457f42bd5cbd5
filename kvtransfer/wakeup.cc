#include "kvtransfer/wakeup.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace baton {

absl::StatusOr<Wakeup> Wakeup::Create() {
  UniqueFd fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!fd.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", std::strerror(errno)));
  }
  return Wakeup(std::move(fd));
}

void Wakeup::Notify() {
  if (!pending_.exchange(true)) {
    // A full counter would still be readable, so there is no failure to handle.
    eventfd_write(fd_.get(), 1);
  }
}

bool Wakeup::Consume() {
  // The flag is cleared only after the one write that belongs to it has been read; a notifier
  // between its two steps makes the descriptor readable in a moment. A Notify that finds the flag
  // still set relies on this call's caller to look, and the exchange makes visible what came before
  // it.
  eventfd_t count = 0;
  return pending_.load() && eventfd_read(fd_.get(), &count) == 0 && pending_.exchange(false);
}

}  // namespace baton
