#pragma once

#include <cstddef>
#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "common/mailbox.h"

namespace baton {

// One thread for work that is too long for a gRPC reaction: gRPC has few threads, and every stream
// of the process waits while one of them is busy. Thread-safe.
class WorkThread {
 public:
  // At most `capacity` pieces of work wait.
  explicit WorkThread(std::size_t capacity);
  // Runs what waits, then ends.
  ~WorkThread();
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;

  // `work` runs later, in the order of the posts. RESOURCE_EXHAUSTED when too much waits.
  absl::Status Post(std::function<void()> work);

 private:
  void Run();

  Mailbox<std::function<void()>> mailbox_;
  std::jthread thread_;  // last: it uses the mailbox
};

}  // namespace baton
