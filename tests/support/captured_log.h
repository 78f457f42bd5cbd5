#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <string_view>

#include "common/check.h"
#include "common/file.h"
#include "tests/support/patience.h"
#include "tests/support/wait_until.h"

namespace baton {

// Takes what this process writes to standard error while the object lives; one at a time. Unlike
// GoogleTest's capture it can be read while threads write: ending one capture and starting the next
// would lose the lines in between. What was taken is written to standard error at the end.
class CapturedLog {
 public:
  CapturedLog() : taken_(memfd_create("captured_log", MFD_CLOEXEC)), original_(dup(STDERR_FILENO)) {
    BATON_CHECK(taken_.ok() && original_.ok());
    BATON_CHECK(dup2(taken_.get(), STDERR_FILENO) == STDERR_FILENO);
  }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;
  ~CapturedLog() {
    BATON_CHECK(dup2(original_.get(), STDERR_FILENO) == STDERR_FILENO);
    const std::string text = this->text();
    BATON_CHECK(write(STDERR_FILENO, text.data(), text.size()) >= 0);
  }

  // What was written so far.
  std::string text() const {
    std::string text;
    std::array<char, 4096> part;
    ssize_t size;
    while ((size = pread(taken_.get(), part.data(), part.size(), static_cast<off_t>(text.size()))) >
           0) {
      text.append(part.data(), static_cast<std::size_t>(size));
    }
    BATON_CHECK(size == 0);
    return text;
  }
  bool WaitFor(std::string_view event, std::chrono::milliseconds limit = kPatience) const {
    return WaitUntil([&] { return text().find(event) != std::string::npos; }, limit);
  }

 private:
  const UniqueFd taken_;
  const UniqueFd original_;
};

}  // namespace baton
