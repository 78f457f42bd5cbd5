#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

extern char** environ;

namespace baton {

// A program that the test has started; killed and reaped at the end. Its standard output is read by
// lines; closing its standard input asks it to end.
class ChildProcess {
 public:
  explicit ChildProcess(std::vector<std::string> arguments) {
    int in[2] = {-1, -1};
    int out[2] = {-1, -1};
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) {
      return;
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    std::vector<char*> argv;
    for (std::string& argument : arguments) {
      argv.push_back(argument.data());
    }
    argv.push_back(nullptr);
    if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) {
      pid_ = -1;
    }
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    input_ = in[1];
    output_ = out[0];
  }
  ~ChildProcess() {
    Kill();
    close(input_);
    close(output_);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Empty when the child ends or says nothing for 20 seconds.
  std::string ReadLine() {
    std::string line;
    char c = 0;
    pollfd wait{.fd = output_, .events = POLLIN, .revents = 0};
    while (poll(&wait, 1, 20000) == 1 && read(output_, &c, 1) == 1 && c != '\n') {
      line += c;
    }
    return line;
  }

  // To its standard input; false when it no longer reads.
  bool WriteLine(const std::string& line) const {
    const std::string text = line + '\n';
    return write(input_, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  }

  void Signal(int signal) const {
    if (pid_ > 0) {
      kill(pid_, signal);
    }
  }
  // SIGKILL, and waits for the end.
  void Kill() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
};

}  // namespace baton
