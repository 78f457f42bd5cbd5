#pragma once

#include <cstddef>

// What the sanitizers' runtimes offer to programs that make their own threads of control. All weak:
// null where the program is built without that sanitizer, so that one object of the emulator's
// runtime, itself never instrumented, serves every kind of build.
extern "C" {
[[gnu::weak]] void* __tsan_get_current_fiber(void);
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
[[gnu::weak]] void __tsan_acquire(void* address);
[[gnu::weak]] void __tsan_release(void* address);
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** frames,
                                                  const void* bottom,
                                                  std::size_t bytes);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* frames,
                                                   const void** old_bottom,
                                                   std::size_t* old_bytes);
[[gnu::weak]] void __asan_poison_memory_region(const volatile void* address, std::size_t bytes);
[[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* address, std::size_t bytes);
}

namespace baton::emulated {

inline bool UnderThreadSanitizer() {
  return __tsan_create_fiber != nullptr;
}
inline bool UnderAddressSanitizer() {
  return __asan_poison_memory_region != nullptr;
}

// All that happened before Release(object) happens before what follows Acquire(object).
inline void Acquire(void* object) {
  if (__tsan_acquire != nullptr) {
    __tsan_acquire(object);
  }
}

inline void Release(void* object) {
  if (__tsan_release != nullptr) {
    __tsan_release(object);
  }
}

}  // namespace baton::emulated
