// What Abseil's locks order, for the thread sanitizer. Debian's Abseil is compiled without it, so
// the sanitizer sees neither the lock nor the hand-over and calls every guarded access a race. The
// linker sends the calls of instrumented code here first (--wrap, cmake/BatonTest.cmake).
//
// A condition of Await is evaluated by Abseil, under the lock, on whatever thread lets go of it: in
// those stretches reads are not looked at.

#include <sanitizer/tsan_interface.h>

#include <cstdint>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

namespace baton {
namespace {

class ReadsIgnored {
 public:
  ReadsIgnored() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~ReadsIgnored() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
  ReadsIgnored(const ReadsIgnored&) = delete;
  ReadsIgnored& operator=(const ReadsIgnored&) = delete;
};

// Around a call that lets go of the mutex and has it again when it returns.
template <typename Call>
auto Reacquire(void* mutex, Call call) {
  __tsan_release(mutex);
  const ReadsIgnored ignored;
  const auto result = call();
  __tsan_acquire(mutex);
  return result;
}

}  // namespace

#define REAL(symbol) asm("__real_" symbol)
#define WRAP(symbol) asm("__wrap_" symbol)

#define LOCK "_ZN4absl7debian35Mutex4LockEv"
void RealLock(absl::Mutex*) REAL(LOCK);
void WrapLock(absl::Mutex*) WRAP(LOCK);
void WrapLock(absl::Mutex* mutex) {
  RealLock(mutex);
  __tsan_acquire(mutex);
}

#define UNLOCK "_ZN4absl7debian35Mutex6UnlockEv"
void RealUnlock(absl::Mutex*) REAL(UNLOCK);
void WrapUnlock(absl::Mutex*) WRAP(UNLOCK);
void WrapUnlock(absl::Mutex* mutex) {
  __tsan_release(mutex);
  const ReadsIgnored ignored;
  RealUnlock(mutex);
}

#define AWAIT "_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE"
void RealAwait(absl::Mutex*, const absl::Condition&) REAL(AWAIT);
void WrapAwait(absl::Mutex*, const absl::Condition&) WRAP(AWAIT);
void WrapAwait(absl::Mutex* mutex, const absl::Condition& condition) {
  Reacquire(mutex, [&] {
    RealAwait(mutex, condition);
    return 0;
  });
}

#define AWAIT_TIMEOUT "_ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE"
bool RealAwaitTimeout(absl::Mutex*, const absl::Condition&, absl::Duration) REAL(AWAIT_TIMEOUT);
bool WrapAwaitTimeout(absl::Mutex*, const absl::Condition&, absl::Duration) WRAP(AWAIT_TIMEOUT);
bool WrapAwaitTimeout(absl::Mutex* mutex, const absl::Condition& condition, absl::Duration time) {
  return Reacquire(mutex, [&] { return RealAwaitTimeout(mutex, condition, time); });
}

#define AWAIT_DEADLINE "_ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE"
bool RealAwaitDeadline(absl::Mutex*, const absl::Condition&, absl::Time) REAL(AWAIT_DEADLINE);
bool WrapAwaitDeadline(absl::Mutex*, const absl::Condition&, absl::Time) WRAP(AWAIT_DEADLINE);
bool WrapAwaitDeadline(absl::Mutex* mutex, const absl::Condition& condition, absl::Time time) {
  return Reacquire(mutex, [&] { return RealAwaitDeadline(mutex, condition, time); });
}

#define WAIT "_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE"
void RealWait(absl::CondVar*, absl::Mutex*) REAL(WAIT);
void WrapWait(absl::CondVar*, absl::Mutex*) WRAP(WAIT);
void WrapWait(absl::CondVar* changed, absl::Mutex* mutex) {
  Reacquire(mutex, [&] {
    RealWait(changed, mutex);
    return 0;
  });
}

#define WAIT_DEADLINE "_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE"
bool RealWaitDeadline(absl::CondVar*, absl::Mutex*, absl::Time) REAL(WAIT_DEADLINE);
bool WrapWaitDeadline(absl::CondVar*, absl::Mutex*, absl::Time) WRAP(WAIT_DEADLINE);
bool WrapWaitDeadline(absl::CondVar* changed, absl::Mutex* mutex, absl::Time time) {
  return Reacquire(mutex, [&] { return RealWaitDeadline(changed, mutex, time); });
}

#define WAIT_TIMEOUT "_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE"
bool RealWaitTimeout(absl::CondVar*, absl::Mutex*, absl::Duration) REAL(WAIT_TIMEOUT);
bool WrapWaitTimeout(absl::CondVar*, absl::Mutex*, absl::Duration) WRAP(WAIT_TIMEOUT);
bool WrapWaitTimeout(absl::CondVar* changed, absl::Mutex* mutex, absl::Duration time) {
  return Reacquire(mutex, [&] { return RealWaitTimeout(changed, mutex, time); });
}

#define NOTIFY "_ZN4absl7debian312Notification6NotifyEv"
void RealNotify(absl::Notification*) REAL(NOTIFY);
void WrapNotify(absl::Notification*) WRAP(NOTIFY);
void WrapNotify(absl::Notification* notification) {
  __tsan_release(notification);
  RealNotify(notification);
}

// Of what copies of a status share: who lets go last deletes it, after what all others did.
#define UNREF "_ZN4absl7debian36Status15UnrefNonInlinedEm"
void RealUnref(std::uintptr_t) REAL(UNREF);
void WrapUnref(std::uintptr_t) WRAP(UNREF);
void WrapUnref(std::uintptr_t shared) {
  void* const counter = reinterpret_cast<void*>(shared);
  __tsan_release(counter);
  __tsan_acquire(counter);
  RealUnref(shared);
}

#define WAIT_NOTIFIED "_ZNK4absl7debian312Notification19WaitForNotificationEv"
void RealWaitNotified(absl::Notification*) REAL(WAIT_NOTIFIED);
void WrapWaitNotified(absl::Notification*) WRAP(WAIT_NOTIFIED);
void WrapWaitNotified(absl::Notification* notification) {
  RealWaitNotified(notification);
  __tsan_acquire(notification);
}

#define WAIT_NOTIFIED_TIMEOUT \
  "_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE"
bool RealWaitNotifiedTimeout(absl::Notification*, absl::Duration) REAL(WAIT_NOTIFIED_TIMEOUT);
bool WrapWaitNotifiedTimeout(absl::Notification*, absl::Duration) WRAP(WAIT_NOTIFIED_TIMEOUT);
bool WrapWaitNotifiedTimeout(absl::Notification* notification, absl::Duration time) {
  const bool notified = RealWaitNotifiedTimeout(notification, time);
  if (notified) {
    __tsan_acquire(notification);
  }
  return notified;
}

}  // namespace baton
