#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "tests/emulation/fiber.h"
#include "tests/emulation/runtime.h"

// The inside of runtime.h. Included by files that no sanitizer instruments, and by no others:
// fibers share these objects.
namespace baton::emulated {

inline constexpr int kMaxWarps = kMaxBlockThreads / kWarpLanes;

// What a thread is waiting for.
enum class State : std::uint8_t { kReady, kAtBarrier, kAtWarpOperation, kEnded };

class BlockRunner;

struct PendingCopy {
  AsyncCopy copy;
  std::uint64_t group = 0;
};

// One CUDA thread. Its fiber is used again by the next block.
struct CudaThread {
  CudaThread(BlockRunner* its_runner, int its_number);

  ThreadView view;
  BlockRunner* const runner;
  const int number;  // in the block
  State state = State::kReady;
  std::source_location waits_at;
  std::deque<PendingCopy> copies;
  std::uint64_t open_group = 0;
  Fiber fiber;
};

// A warp operation that some lanes of its mask have reached.
struct Meeting {
  std::uint32_t mask = 0;
  std::uint32_t arrived = 0;
  Complete complete = nullptr;
};

struct Warp {
  std::uint32_t live = 0;   // lanes that have not ended
  std::uint32_t ready = 0;  // lanes that could go on and are not running
  // Plain memory: ThreadSanitizer sees what a vector allocates and moves on one fiber and another.
  Meeting meetings[kWarpLanes];
  int open_meetings = 0;
  void* operands[kWarpLanes] = {};
  // Objects of ThreadSanitizer's order, see BlockRunner::barrier_order_. By the first lane of the
  // mask.
  char order[2][kWarpLanes] = {};
  std::uint8_t phase[kWarpLanes] = {};
};

// What a launch asked for.
struct Grid {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  void (*body)(const void*) = nullptr;
  const void* context = nullptr;
};

// Runs the grids of one OS thread, block after block, and keeps the fibers between them.
//
// Not thread-safe: of one OS thread. Barrier and what is named after it are called by the running
// fiber.
class BlockRunner {
 public:
  void Run(const Grid& grid);
  int Barrier(bool vote, const std::source_location& where);
  void Collective(std::uint32_t mask,
                  Complete complete,
                  void* operand,
                  const std::source_location& where);
  void Finish(Meeting* closing);
  void EndLane();
  void OrderedWarpBarrier(std::uint32_t mask, const std::source_location& where);
  // Ends the launch; an error has been recorded. Nothing on the fibers' stacks is destroyed.
  [[noreturn]] void Stop();
  [[noreturn]] void ThreadMain();
  CudaThread& running() { return *running_; }
  std::string ThreadName() const;

 private:
  bool RunBlock(uint3 index, bool falling);
  void StartThreads(uint3 index);
  void StopOthers();
  bool CheckCanary(uint3 index) const;
  void SwitchTo(CudaThread& next);
  void Leave(State state, const std::source_location& where);
  void MakeReady(CudaThread& thread);
  CudaThread* NextReady(int after_lane, int warp);
  std::string StuckMessage() const;
  std::string BlockName() const;
  Warp& WarpOf(const CudaThread& thread) {
    return warps_[static_cast<std::size_t>(thread.number / kWarpLanes)];
  }

  const Grid* grid_ = nullptr;
  std::unique_ptr<Fiber> main_;
  std::vector<std::unique_ptr<CudaThread>> threads_;  // as many as the largest block so far
  int thread_count_ = 0;                              // of this block
  int ended_ = 0;
  std::array<Warp, kMaxWarps> warps_;
  std::uint32_t ready_warps_ = 0;
  bool falling_ = false;  // order of the warps
  CudaThread* running_ = nullptr;
  bool aborted_ = false;

  int at_barrier_ = 0;
  int votes_ = 0;
  int vote_result_ = 0;
  // Two objects in turn: with one, what a fast thread releases at the next barrier would reach a
  // slow thread that is still acquiring this one, and hide that the slow one's reads race with the
  // fast one's writes.
  char barrier_order_[2] = {};
  unsigned barrier_phase_ = 0;
  char block_start_order_ = 0;
  char block_end_order_ = 0;

  std::byte* shared_ = nullptr;
};

// Keeps the error unless there is one already.
void RecordError(const std::string& message);
std::string Triple(uint3 value);

}  // namespace baton::emulated
