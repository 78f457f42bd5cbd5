#pragma once

#include <vector>

#include "absl/status/status.h"

namespace baton {

// Those that this process may use, ascending; as it was started, whatever PinProcess has done
// since.
const std::vector<int>& PermittedCores();

// The `count` cores of those that this process may use which were idlest over the last moments
// (this takes a fifth of a second); all of them when there are fewer.
std::vector<int> IdlestCores(int count);

// Keeps every thread of this process, and what it starts from now on, on these cores.
absl::Status PinProcess(const std::vector<int>& cores);

// Keeps the calling thread, and what it starts meanwhile, on some cores for the life of this.
//
// Not thread-safe: destroyed by the thread that made it.
class ThreadPin {
 public:
  explicit ThreadPin(const std::vector<int>& cores);
  ~ThreadPin();
  ThreadPin(const ThreadPin&) = delete;
  ThreadPin& operator=(const ThreadPin&) = delete;

 private:
  const std::vector<int> before_;
};

}  // namespace baton
