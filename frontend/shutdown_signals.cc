#include "frontend/shutdown_signals.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace baton {
namespace {

// Where the handler writes. Read in a signal handler, hence a lock-free atomic and nothing more.
std::atomic<int> pipe_for_handler{-1};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void WriteSignalByte(int /*signal*/) {
  const int saved_errno = errno;
  const char byte = 1;
  // A full pipe holds news enough.
  [[maybe_unused]] const ssize_t written = write(pipe_for_handler.load(), &byte, 1);
  errno = saved_errno;
}

}  // namespace

struct ShutdownSignals::Saved {
  struct sigaction terminate {};
  struct sigaction interrupt {};
  struct sigaction pipe {};
};

absl::StatusOr<std::unique_ptr<ShutdownSignals>> ShutdownSignals::Install() {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("make a pipe: ", std::strerror(errno)));
  }
  return std::unique_ptr<ShutdownSignals>(
      new ShutdownSignals(UniqueFd(ends[0]), UniqueFd(ends[1])));
}

ShutdownSignals::ShutdownSignals(UniqueFd read_end, UniqueFd write_end)
    : read_end_(std::move(read_end)),
      write_end_(std::move(write_end)),
      saved_(std::make_unique<Saved>()) {
  const int before = pipe_for_handler.exchange(write_end_.get());
  BATON_CHECK(before == -1);
  struct sigaction action {};
  action.sa_handler = WriteSignalByte;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, &saved_->terminate);
  sigaction(SIGINT, &action, &saved_->interrupt);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &saved_->pipe);
}

ShutdownSignals::~ShutdownSignals() {
  sigaction(SIGTERM, &saved_->terminate, nullptr);
  sigaction(SIGINT, &saved_->interrupt, nullptr);
  sigaction(SIGPIPE, &saved_->pipe, nullptr);
  pipe_for_handler.store(-1);
}

bool ShutdownSignals::Wait(std::chrono::milliseconds timeout) {
  pollfd news{.fd = read_end_.get(), .events = POLLIN, .revents = 0};
  const int wait_ms = timeout.count() < 0 ? -1 : static_cast<int>(timeout.count());
  if (poll(&news, 1, wait_ms) <= 0) {
    return false;  // nothing yet, or poll itself was interrupted: callers wait again
  }
  char byte = 0;
  return read(read_end_.get(), &byte, 1) == 1;
}

}  // namespace baton
