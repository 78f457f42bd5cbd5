#include "common/serial_executor.h"

#include "absl/time/time.h"

namespace baton {

SerialExecutor::SerialExecutor() : thread_([this] { Run(); }) {}

SerialExecutor::~SerialExecutor() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void SerialExecutor::PostAt(TimePoint when, Task task) {
  absl::MutexLock lock(&mutex_);
  if (!stopping_) {
    tasks_.emplace(when, std::move(task));
    changed_.Signal();
  }
}

bool SerialExecutor::IsDue() const {
  return !tasks_.empty() && tasks_.begin()->first <= Clock::System().Now();
}

void SerialExecutor::Run() {
  while (true) {
    Task task;
    {
      absl::MutexLock lock(&mutex_);
      while (!IsDue() && !stopping_) {
        if (tasks_.empty()) {
          changed_.Wait(&mutex_);
        } else {
          changed_.WaitWithTimeout(&mutex_,
                                   absl::FromChrono(tasks_.begin()->first - Clock::System().Now()));
        }
      }
      if (!IsDue()) {
        return;
      }
      task = std::move(tasks_.extract(tasks_.begin()).mapped());
    }
    task();
  }
}

}  // namespace baton
