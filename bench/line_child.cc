#include "bench/line_child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace baton {
namespace {

// Until `fd` is readable or the deadline has passed.
bool WaitReadable(int fd, TimePoint deadline) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::System().Now());
    pollfd waited{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready =
        poll(&waited, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000)));
    if (ready > 0 || (ready == 0 && Clock::System().Now() >= deadline)) {
      return ready > 0;
    }
  }
}

// In the child, between fork and exec: nothing here may allocate or lock.
[[noreturn]] void BecomeProgram(char* const* command, pid_t parent, int input, int output) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGPIPE, SIG_DFL);
  if (getppid() == parent && dup2(input, STDIN_FILENO) >= 0 && dup2(output, STDOUT_FILENO) >= 0) {
    execv(command[0], command);
  }
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LineChild>> LineChild::Start(
    const std::vector<std::string>& command) {
  if (access(command.front().c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(command.front(), ": ", std::strerror(errno)));
  }
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  if (pipe2(in.data(), O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("pipe: ", std::strerror(errno)));
  }
  const UniqueFd child_input(in[0]);
  UniqueFd input(in[1]);
  if (pipe2(out.data(), O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("pipe: ", std::strerror(errno)));
  }
  UniqueFd output(out[0]);
  const UniqueFd child_output(out[1]);
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    BecomeProgram(arguments.data(), parent, child_input.get(), child_output.get());
  }
  if (pid < 0) {
    return absl::InternalError(absl::StrCat("fork: ", std::strerror(errno)));
  }
  // glibc 2.36 declares pidfd_open for C only.
  UniqueFd handle(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  BATON_CHECK(handle.ok());
  return std::unique_ptr<LineChild>(
      new LineChild(command.front(), pid, std::move(handle), std::move(input), std::move(output)));
}

LineChild::LineChild(std::string name, pid_t pid, UniqueFd handle, UniqueFd input, UniqueFd output)
    : name_(std::move(name)),
      pid_(pid),
      handle_(std::move(handle)),
      input_(std::move(input)),
      output_(std::move(output)) {}

LineChild::~LineChild() {
  if (!reaped_) {
    Finish(std::chrono::seconds(1));
  }
}

absl::Status LineChild::WriteLine(const std::string& line) {
  const std::string text = line + "\n";
  for (std::size_t written = 0; written < text.size();) {
    const ssize_t count = write(input_.get(), text.data() + written, text.size() - written);
    if (count < 0 && errno != EINTR) {
      return absl::UnavailableError(absl::StrCat(name_, " does not read: ", std::strerror(errno)));
    }
    written += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> LineChild::ReadLine(Duration patience) {
  const TimePoint deadline = Clock::System().Now() + patience;
  while (read_.find('\n') == std::string::npos) {
    if (!WaitReadable(output_.get(), deadline)) {
      return absl::DeadlineExceededError(absl::StrCat(name_, " says nothing"));
    }
    std::array<char, 4096> piece{};
    const ssize_t count = read(output_.get(), piece.data(), piece.size());
    if (count <= 0) {
      return absl::UnavailableError(absl::StrCat(name_, " has ended"));
    }
    read_.append(piece.data(), static_cast<std::size_t>(count));
  }
  const std::size_t end = read_.find('\n');
  std::string line = read_.substr(0, end);
  read_.erase(0, end + 1);
  return line;
}

std::optional<int> LineChild::Finish(Duration patience) {
  BATON_CHECK(!reaped_);
  input_.reset();
  if (!WaitReadable(handle_.get(), Clock::System().Now() + patience)) {
    kill(pid_, SIGKILL);
  }
  int status = 0;
  BATON_CHECK(waitpid(pid_, &status, 0) == pid_);
  reaped_ = true;
  return WIFEXITED(status) ? std::optional(WEXITSTATUS(status)) : std::nullopt;
}

}  // namespace baton
