#include "frontend/work_thread.h"

#include <deque>
#include <utility>

#include "absl/time/time.h"

namespace baton {

WorkThread::WorkThread(std::size_t capacity) : mailbox_(capacity), thread_([this] { Run(); }) {}

WorkThread::~WorkThread() {
  mailbox_.Close();
}

absl::Status WorkThread::Post(std::function<void()> work) {
  return mailbox_.Push(std::move(work));
}

void WorkThread::Run() {
  while (true) {
    const bool closing =
        mailbox_.closed();  // asked first: what comes before Close is then in the next PopAll
    std::deque<std::function<void()>> all = mailbox_.PopAll(absl::InfiniteDuration());
    if (all.empty() && closing) {
      return;
    }
    for (std::function<void()>& work : all) {
      work();
    }
  }
}

}  // namespace baton
