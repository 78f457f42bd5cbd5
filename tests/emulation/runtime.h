#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string>

// Runs a grid of CUDA threads on the host: one fiber for each thread of a block, one block after
// the other on the calling OS thread. A warp goes on as far as it can before another one does, and
// every second block takes its warps in falling order: code that lacks a barrier then reads what is
// not there yet. Whoever is compiled against this header may be instrumented by a sanitizer; the
// runtime itself is not, and knows of every order between threads by itself.
namespace baton::emulated {

inline constexpr int kWarpLanes = 32;
inline constexpr int kMaxBlockThreads = 1024;
inline constexpr std::size_t kMaxDynamicSharedBytes = 227 * 1024;  // of sm_90; sm_80 has 163 KiB
// Fills memory that nobody has written: a NaN in every floating point type.
inline constexpr std::uint64_t kPoison = 0xffffffffffffffff;

// Three unsigned numbers: an index (0 when absent) or, as dim3, a size (1 when absent).
struct uint3 {
  unsigned x = 0;
  unsigned y = 0;
  unsigned z = 0;
};

struct dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
  constexpr dim3(unsigned x_size = 1,
                 unsigned y_size = 1,
                 unsigned z_size = 1)  // NOLINT: as CUDA's
      : x(x_size), y(y_size), z(z_size) {}
};

// What a running thread may ask about itself.
struct ThreadView {
  uint3 thread_index;
  uint3 block_index;
  dim3 block_size;
  dim3 grid_size;
  int lane = 0;
  std::byte* dynamic_shared = nullptr;
};

// Of the CUDA thread that this OS thread is running now.
extern constinit thread_local ThreadView* current_thread;

// Runs body(context) once for each CUDA thread; returns when all have ended. One grid runs at a
// time in a process, since a kernel's shared arrays are static; other OS threads wait. Errors of
// the kernel: TakeKernelError(). Returns the value of a cudaError_t: not 0 when the sizes can't be
// launched.
int RunGrid(dim3 grid,
            dim3 block,
            std::size_t dynamic_shared_bytes,
            void (*body)(const void*),
            const void* context);

// What RunGrid says about sizes, without running anything.
int CheckLaunch(dim3 grid, dim3 block, std::size_t dynamic_shared_bytes);

// The first error of a kernel since the last call, empty when there was none: a barrier that not
// all threads reach, a misaligned asynchronous copy, a write past dynamic shared memory. The launch
// in which it happens ends there. Thread-safe.
std::string TakeKernelError();

// Of a running kernel: records the error and ends the launch.
[[noreturn]] void FailKernel(const char* message);

// How many threads voted yes, once all threads of the block have come here: to the same call, and
// none may have ended.
int BlockBarrier(bool vote, const std::source_location& where);

// Waits until all lanes of `mask` that have not ended have called with the same `complete`; then
// one of them calls it with the operands by lane and the lanes that came. Operands may live on the
// fibers' stacks. Establishes no order between the lanes' other memory accesses.
using Complete = void (*)(void* const* operands, std::uint32_t mask);
void WarpCollective(std::uint32_t mask,
                    Complete complete,
                    void* operand,
                    const std::source_location& where);
// The same for no operands, and what the lanes did before happens before what they do next.
void WarpBarrier(std::uint32_t mask, const std::source_location& where);

// One copy of at most 16 bytes that the running thread has issued and not waited for. The caller
// does the copying, so that a sanitizer sees it.
struct AsyncCopy {
  void* target = nullptr;
  const void* source = nullptr;
  int source_bytes = 0;  // the rest of the 16 becomes zero
};
void IssueAsyncCopy(const AsyncCopy& copy);
void CommitAsyncCopies();
// Takes the oldest copy out of the closed groups but the `kept_groups` newest; false when there is
// none.
bool NextAsyncCopy(int kept_groups, AsyncCopy* copy);

}  // namespace baton::emulated
