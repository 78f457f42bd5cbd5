#include "tests/support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace baton {
namespace {

constexpr std::size_t kErrorTailBytes = 4000;

absl::Status SystemError(const std::string& what) {
  return absl::InternalError(absl::StrCat(what, ": ", std::strerror(errno)));
}

int MillisecondsUntil(TimePoint deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::System().Now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000));
}

// Poll until `fd` is readable or the deadline has passed.
bool WaitReadable(int fd, TimePoint deadline) {
  while (true) {
    pollfd waited{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = poll(&waited, 1, MillisecondsUntil(deadline));
    if (ready > 0 || (ready == 0 && Clock::System().Now() >= deadline)) {
      return ready > 0;
    }
  }
}

// In the child, between fork and exec: nothing here may allocate or lock.
[[noreturn]] void BecomeProgram(
    const char* program, char* const* arguments, pid_t parent, int output, int errors) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (getppid() == parent && dup2(nothing, STDIN_FILENO) >= 0 && dup2(output, STDOUT_FILENO) >= 0 &&
      dup2(errors, STDERR_FILENO) >= 0) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execv(program, arguments);
  }
  _exit(127);
}

}  // namespace

std::string ProgramPath(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    const std::string& program, const std::vector<std::string>& arguments) {
  if (access(program.c_str(), X_OK) != 0) {
    return SystemError(program);
  }
  std::array<int, 2> pipe_ends{};
  if (pipe2(pipe_ends.data(), O_CLOEXEC) != 0) {
    return SystemError("pipe");
  }
  UniqueFd read_end(pipe_ends[0]);
  const UniqueFd write_end(pipe_ends[1]);
  UniqueFd errors(memfd_create("errors", MFD_CLOEXEC));
  if (!errors.ok()) {
    return SystemError("memory for standard error");
  }
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    BecomeProgram(program.c_str(), argv.data(), parent, write_end.get(), errors.get());
  }
  if (pid < 0) {
    return SystemError("fork");
  }
  // glibc 2.36 declares pidfd_open for C only.
  UniqueFd handle(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  BATON_CHECK(handle.ok());
  return std::unique_ptr<ChildProcess>(
      new ChildProcess(pid, std::move(handle), std::move(read_end), std::move(errors)));
}

ChildProcess::ChildProcess(pid_t pid, UniqueFd handle, UniqueFd output, UniqueFd errors)
    : pid_(pid),
      handle_(std::move(handle)),
      output_(std::move(output)),
      errors_(std::move(errors)) {}

ChildProcess::~ChildProcess() {
  Kill();
}

absl::StatusOr<std::string> ChildProcess::ReadLine(Duration patience) {
  const TimePoint deadline = Clock::System().Now() + patience;
  while (buffered_.find('\n') == std::string::npos) {
    const auto fail = [this](absl::StatusCode code, const char* what) {
      const std::string errors = ErrorOutput();
      const std::size_t tail = errors.size() - std::min(errors.size(), kErrorTailBytes);
      return absl::Status(code, absl::StrCat(what, "; standard error:\n", errors.substr(tail)));
    };
    if (!WaitReadable(output_.get(), deadline)) {
      return fail(absl::StatusCode::kDeadlineExceeded, "no line on standard output");
    }
    std::array<char, 4096> piece{};
    const ssize_t count = read(output_.get(), piece.data(), piece.size());
    if (count <= 0) {
      return fail(absl::StatusCode::kUnavailable, "standard output has ended");
    }
    buffered_.append(piece.data(), static_cast<std::size_t>(count));
  }
  const std::size_t end = buffered_.find('\n');
  std::string line = buffered_.substr(0, end);
  buffered_.erase(0, end + 1);
  return line;
}

std::string ChildProcess::ReadRest() {
  BATON_CHECK(end_.has_value());
  std::array<char, 4096> piece{};
  ssize_t count = 0;
  while ((count = read(output_.get(), piece.data(), piece.size())) > 0) {
    buffered_.append(piece.data(), static_cast<std::size_t>(count));
  }
  return std::exchange(buffered_, "");
}

void ChildProcess::Signal(int signal) {
  if (!end_.has_value()) {
    kill(pid_, signal);
  }
}

void ChildProcess::Kill() {
  Signal(SIGKILL);
  // A killed process ends; a stopped one too.
  WaitForEnd(std::chrono::hours(1));
}

std::optional<ProcessEnd> ChildProcess::WaitForEnd(Duration patience) {
  if (end_.has_value() || !WaitReadable(handle_.get(), Clock::System().Now() + patience)) {
    return end_;
  }
  int status = 0;
  BATON_CHECK(waitpid(pid_, &status, 0) == pid_);
  end_.emplace();
  if (WIFEXITED(status)) {
    end_->code = WEXITSTATUS(status);
  } else {
    end_->signal = WTERMSIG(status);
  }
  return end_;
}

std::size_t ChildProcess::open_files() const {
  std::error_code error;
  const std::filesystem::directory_iterator files(absl::StrCat("/proc/", pid_, "/fd"), error);
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

std::string ChildProcess::ErrorOutput() const {
  struct stat info {};
  BATON_CHECK(fstat(errors_.get(), &info) == 0);
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  const ssize_t count = pread(errors_.get(), text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  return text;
}

}  // namespace baton
