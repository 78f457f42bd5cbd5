#pragma once

#include <cstddef>

namespace baton::emulated {

// A thread of control on a stack of its own, which runs only while it is switched to.
// AddressSanitizer and ThreadSanitizer are told about every switch when the program has them.
//
// A fiber belongs to the OS thread that made it.
class Fiber {
 public:
  // Stands for the calling OS thread and its stack.
  Fiber();
  // Runs entry(argument) when it is first switched to; `entry` never returns.
  Fiber(void (*entry)(void*), void* argument);
  // REQUIRES: it is not running. What its stack holds is dropped without destructors.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Continues `to`; returns when something switches back to `from`.
  // REQUIRES: `from` is the running fiber. Establishes no order for ThreadSanitizer.
  static void Switch(Fiber& from, Fiber& to);

 private:
  friend void FiberMain(Fiber* self);
  void FinishSwitch();

  void* context_ =
      nullptr;  // where it goes on: a stack pointer, or a ucontext_t where there is no assembly
  std::byte* stack_ = nullptr;  // lowest usable address; under it a page that nobody may touch
  std::size_t stack_bytes_ = 0;
  bool owns_stack_ = false;
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  void* thread_sanitizer_fiber_ = nullptr;
  void* address_sanitizer_frames_ = nullptr;
};

}  // namespace baton::emulated
