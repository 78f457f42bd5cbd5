#include "frontend/timer_thread.h"

#include <chrono>

#include "absl/time/time.h"

namespace baton {

TimerThread::TimerThread() : thread_([this] { Run(); }) {}

TimerThread::~TimerThread() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
}

TimerThread::Key TimerThread::Schedule(TimePoint when, std::function<void()> function) {
  absl::MutexLock lock(&mutex_);
  const Key key{.when = when, .number = next_number_++};
  functions_.emplace(key, std::move(function));
  return key;
}

void TimerThread::Cancel(const Key& key) {
  std::function<void()> dropped;  // destroyed after the lock is released: it may own things
  absl::MutexLock lock(&mutex_);
  const auto found = functions_.find(key);
  if (found != functions_.end()) {
    dropped = std::move(found->second);
    functions_.erase(found);
  }
}

// The first function is another one than the thread sleeps for, or there is none to sleep for.
bool TimerThread::HasNews() const {
  return stopping_ || (!functions_.empty() && functions_.begin()->first < awaited_);
}

void TimerThread::Run() {
  while (true) {
    std::function<void()> due;
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) {
        return;
      }
      if (functions_.empty()) {
        awaited_ = {.when = TimePoint::max()};
        mutex_.Await(absl::Condition(this, &TimerThread::HasNews));
        continue;
      }
      const auto first = functions_.begin();
      const Duration wait = first->first.when - Clock::System().Now();
      if (wait > Duration::zero()) {
        awaited_ = first->first;
        mutex_.AwaitWithTimeout(absl::Condition(this, &TimerThread::HasNews),
                                absl::FromChrono(wait));
        continue;
      }
      due = std::move(first->second);
      functions_.erase(first);
    }
    due();
  }
}

}  // namespace baton
