#include "bench/measured_child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace baton {
namespace {

constexpr std::size_t kErrorTailBytes = 2000;

absl::Status SystemError(const std::string& what) {
  return absl::InternalError(absl::StrCat(what, ": ", std::strerror(errno)));
}

double SecondsOf(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

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
[[noreturn]] void BecomeProgram(char* const* command, pid_t parent, int output, int errors) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (getppid() == parent && dup2(nothing, STDIN_FILENO) >= 0 && dup2(output, STDOUT_FILENO) >= 0 &&
      dup2(errors, STDERR_FILENO) >= 0) {
    execv(command[0], command);
  }
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MeasuredChild>> MeasuredChild::Start(
    const std::vector<std::string>& command) {
  if (access(command.front().c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(command.front(), ": ", std::strerror(errno)));
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
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    BecomeProgram(arguments.data(), parent, write_end.get(), errors.get());
  }
  if (pid < 0) {
    return SystemError("fork");
  }
  // glibc 2.36 declares pidfd_open for C only.
  UniqueFd handle(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  BATON_CHECK(handle.ok());
  return std::unique_ptr<MeasuredChild>(
      new MeasuredChild(pid, std::move(handle), std::move(read_end), std::move(errors)));
}

MeasuredChild::MeasuredChild(pid_t pid, UniqueFd handle, UniqueFd output, UniqueFd errors)
    : pid_(pid),
      handle_(std::move(handle)),
      output_(std::move(output)),
      errors_(std::move(errors)),
      started_(Clock::System().Now()) {}

MeasuredChild::~MeasuredChild() {
  if (!reaped_) {
    Wait(Duration::zero());
  }
}

bool MeasuredChild::ReadSome(TimePoint deadline) {
  std::array<char, 4096> piece{};
  if (!WaitReadable(output_.get(), deadline)) {
    return false;
  }
  const ssize_t count = read(output_.get(), piece.data(), piece.size());
  if (count <= 0) {
    return false;
  }
  read_.append(piece.data(), static_cast<std::size_t>(count));
  return true;
}

absl::StatusOr<std::string> MeasuredChild::FirstLine(Duration patience) {
  const TimePoint deadline = Clock::System().Now() + patience;
  while (read_.find('\n') == std::string::npos) {
    if (!ReadSome(deadline)) {
      const bool late = Clock::System().Now() >= deadline;
      return absl::Status(
          late ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kUnavailable,
          absl::StrCat("no line on standard output; standard error:\n", ErrorTail()));
    }
  }
  return read_.substr(0, read_.find('\n'));
}

void MeasuredChild::Signal(int signal) {
  if (!reaped_) {
    kill(pid_, signal);
  }
}

ChildResult MeasuredChild::Wait(Duration patience) {
  BATON_CHECK(!reaped_);
  const TimePoint deadline = Clock::System().Now() + patience;
  while (ReadSome(deadline)) {
  }
  const bool outlived = !WaitReadable(handle_.get(), deadline);
  if (outlived) {
    kill(pid_, SIGKILL);
  }
  int status = 0;
  rusage used = {};
  BATON_CHECK(wait4(pid_, &status, 0, &used) == pid_);
  reaped_ = true;
  ChildResult result{
      .outlived_patience = outlived,
      .output = std::move(read_),
      .errors = ErrorTail(),
      .usage = {
          .cpu_seconds = SecondsOf(used.ru_utime) + SecondsOf(used.ru_stime),
          .wall_seconds = std::chrono::duration<double>(Clock::System().Now() - started_).count()}};
  if (WIFEXITED(status)) {
    result.code = WEXITSTATUS(status);
  } else {
    result.signal = WTERMSIG(status);
  }
  return result;
}

std::string MeasuredChild::ErrorTail() const {
  struct stat info {};
  BATON_CHECK(fstat(errors_.get(), &info) == 0);
  const auto size = static_cast<std::size_t>(info.st_size);
  std::string text(std::min(size, kErrorTailBytes), '\0');
  const ssize_t count =
      pread(errors_.get(), text.data(), text.size(), static_cast<off_t>(size - text.size()));
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  return text;
}

// From /proc/<pid>/stat.
double MeasuredChild::CpuSeconds() const {
  constexpr int kFieldsBeforeTimes = 11;  // between the program's name and utime
  std::ifstream file(absl::StrCat("/proc/", pid_, "/stat"));
  std::string text;
  std::getline(file, text);
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string skipped;
  for (int i = 0; i < kFieldsBeforeTimes; ++i) {
    fields >> skipped;
  }
  double user = 0;
  double system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

absl::StatusOr<std::string> ReadyDoor(const std::string& ready_line, const std::string& key) {
  std::istringstream words(ready_line);
  for (std::string word; words >> word;) {
    if (word.starts_with(key + "=")) {
      return word.substr(key.size() + 1);
    }
  }
  return absl::InternalError(absl::StrCat("no ", key, " in the ready line \"", ready_line, "\""));
}

absl::StatusOr<ChildResult> RunProgram(const std::vector<std::string>& command, Duration patience) {
  absl::StatusOr<std::unique_ptr<MeasuredChild>> child = MeasuredChild::Start(command);
  if (!child.ok()) {
    return child.status();
  }
  return (*child)->Wait(patience);
}

std::string DescribeEnd(const ChildResult& result) {
  return absl::StrCat(result.code.has_value() ? "exit code " : "signal ",
                      result.code.has_value() ? *result.code : *result.signal, ": ", result.errors);
}

}  // namespace baton
