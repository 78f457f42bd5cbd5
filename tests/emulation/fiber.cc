#include "tests/emulation/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/emulation/sanitizer_hooks.h"

#if defined(__x86_64__) && !defined(BATON_EMULATION_UCONTEXT)
#define BATON_EMULATION_ASSEMBLY 1
#else
#include <ucontext.h>
#define BATON_EMULATION_ASSEMBLY 0
#endif

namespace baton::emulated {

void FiberMain(Fiber* self);

namespace {

constexpr unsigned kNoSync = 1;  // __tsan_switch_to_fiber_no_sync
// Instrumented frames are several times as large.
constexpr std::size_t kStackBytes = 64 * 1024;
constexpr std::size_t kInstrumentedStackBytes = 512 * 1024;

// The fiber that the running one was switched to from, for the moment after a switch.
thread_local Fiber* switched_from = nullptr;

[[noreturn]] void Fail(const char* what) {
  std::perror(what);
  std::abort();
}

}  // namespace

#if BATON_EMULATION_ASSEMBLY

extern "C" void BatonSwitchStack(void** save, void* load);
extern "C" void BatonFiberEntry();
extern "C" void BatonFiberMain(Fiber* self) {
  FiberMain(self);
}

// Saves the registers that a call keeps, on the stack that is left; takes them from the one that is
// entered. The floating point control words are the same in all fibers. A fresh stack has its Fiber
// in r12.
asm(R"(
.text
.p2align 4
.globl BatonSwitchStack
.type BatonSwitchStack, @function
BatonSwitchStack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size BatonSwitchStack, .-BatonSwitchStack
.globl BatonFiberEntry
.type BatonFiberEntry, @function
BatonFiberEntry:
  movq %r12, %rdi
  call BatonFiberMain
  ud2
.size BatonFiberEntry, .-BatonFiberEntry
)");

namespace {

void* NewContext() {
  return nullptr;
}

void* FreshContext(void*, std::byte* stack, std::size_t bytes, Fiber* fiber) {
  // From the lowest address: r15 r14 r13 r12 rbx rbp, where to go; two empty words end the stack of
  // a debugger.
  void** top = reinterpret_cast<void**>(stack + bytes) - 9;
  top[3] = fiber;
  top[6] = reinterpret_cast<void*>(&BatonFiberEntry);
  return top;
}

void SwitchContext(void** from, void* to) {
  BatonSwitchStack(from, to);
}

}  // namespace

#else  // any other processor: correct, and some microseconds for each switch

namespace {

void* NewContext() {
  return new ucontext_t;
}
void DeleteContext(void* context) {
  delete static_cast<ucontext_t*>(context);
}

void EnterFiber(unsigned high, unsigned low) {
  const auto address = (static_cast<std::uint64_t>(high) << 32) | low;
  FiberMain(reinterpret_cast<Fiber*>(address));
}

void* FreshContext(void* context, std::byte* stack, std::size_t bytes, Fiber* fiber) {
  auto* fresh = static_cast<ucontext_t*>(context);
  getcontext(fresh);
  fresh->uc_stack.ss_sp = stack;
  fresh->uc_stack.ss_size = bytes;
  fresh->uc_link = nullptr;
  const auto address = reinterpret_cast<std::uint64_t>(fiber);
  makecontext(fresh, reinterpret_cast<void (*)()>(&EnterFiber), 2,
              static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
  return fresh;
}

void SwitchContext(void** from, void* to) {
  swapcontext(static_cast<ucontext_t*>(*from), static_cast<ucontext_t*>(to));
}

}  // namespace

#endif

void FiberMain(Fiber* self) {
  self->FinishSwitch();
  self->entry_(self->argument_);
  std::abort();  // entry never returns
}

Fiber::Fiber() : context_(NewContext()) {
  if (UnderThreadSanitizer()) {
    thread_sanitizer_fiber_ = __tsan_get_current_fiber();
  }
}

Fiber::Fiber(void (*entry)(void*), void* argument)
    : context_(NewContext()), owns_stack_(true), entry_(entry), argument_(argument) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const bool instrumented = UnderThreadSanitizer() || UnderAddressSanitizer();
  stack_bytes_ = instrumented ? kInstrumentedStackBytes : kStackBytes;
  void* memory = mmap(nullptr, stack_bytes_ + page, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) {
    Fail("mmap of a fiber's stack");
  }
  if (mprotect(memory, page, PROT_NONE) != 0) {
    Fail("mprotect under a fiber's stack");
  }
  stack_ = static_cast<std::byte*>(memory) + page;
  context_ = FreshContext(context_, stack_, stack_bytes_, this);
  if (UnderThreadSanitizer()) {
    thread_sanitizer_fiber_ = __tsan_create_fiber(0);
  }
}

Fiber::~Fiber() {
#if !BATON_EMULATION_ASSEMBLY
  DeleteContext(context_);
#endif
  if (!owns_stack_) {
    return;
  }
  if (thread_sanitizer_fiber_ != nullptr) {
    __tsan_destroy_fiber(thread_sanitizer_fiber_);
  }
  if (UnderAddressSanitizer()) {
    __asan_unpoison_memory_region(stack_, stack_bytes_);  // frames that were never left
  }
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  munmap(stack_ - page, stack_bytes_ + page);
}

void Fiber::Switch(Fiber& from, Fiber& to) {
  switched_from = &from;
  if (__sanitizer_start_switch_fiber != nullptr) {
    __sanitizer_start_switch_fiber(&from.address_sanitizer_frames_, to.stack_, to.stack_bytes_);
  }
  if (to.thread_sanitizer_fiber_ != nullptr) {
    __tsan_switch_to_fiber(to.thread_sanitizer_fiber_, kNoSync);
  }
  SwitchContext(&from.context_, to.context_);
  from.FinishSwitch();
}

void Fiber::FinishSwitch() {
  if (__sanitizer_finish_switch_fiber == nullptr) {
    return;
  }
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(address_sanitizer_frames_, &bottom, &bytes);
  if (!switched_from->owns_stack_) {  // the bounds of an OS thread's stack are learnt here
    switched_from->stack_ = static_cast<std::byte*>(const_cast<void*>(bottom));
    switched_from->stack_bytes_ = bytes;
  }
}

}  // namespace baton::emulated
