#include <algorithm>
#include <bit>
#include <cstring>

#include "tests/emulation/block_runner.h"
#include "tests/emulation/sanitizer_hooks.h"

// Where threads of a block wait for each other, and what is said when they wait forever.
namespace baton::emulated {
namespace {

std::string Place(const std::source_location& where) {
  return std::string(where.file_name()) + ":" + std::to_string(where.line());
}

bool SamePlace(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         std::strcmp(a.file_name(), b.file_name()) == 0;
}

}  // namespace

int BlockRunner::Barrier(bool vote, const std::source_location& where) {
  CudaThread& self = *running_;
  char* const order = &barrier_order_[barrier_phase_ % 2];
  Release(order);
  votes_ += vote ? 1 : 0;
  ++at_barrier_;
  if (at_barrier_ < thread_count_) {
    Leave(State::kAtBarrier, where);
  } else {
    self.state = State::kAtBarrier;
    self.waits_at = where;
    for (int i = 0; i < thread_count_; ++i) {
      if (!SamePlace(threads_[static_cast<std::size_t>(i)]->waits_at, where)) {
        RecordError(StuckMessage());
        Stop();
      }
    }
    vote_result_ = votes_;
    votes_ = 0;
    at_barrier_ = 0;
    ++barrier_phase_;
    for (int i = 0; i < thread_count_; ++i) {
      MakeReady(*threads_[static_cast<std::size_t>(i)]);
    }
    CudaThread* const first = NextReady(-1, -1);
    if (first != &self) {
      SwitchTo(*first);
    } else {
      WarpOf(self).ready &= ~(1u << self.view.lane);
    }
  }
  Acquire(order);
  return vote_result_;
}

void BlockRunner::Collective(std::uint32_t mask,
                             Complete complete,
                             void* operand,
                             const std::source_location& where) {
  CudaThread& self = *running_;
  const std::uint32_t bit = 1u << self.view.lane;
  if ((mask & bit) == 0) {
    RecordError(ThreadName() + ": the lane is not in its own mask at " + Place(where));
    Stop();
  }
  Warp& warp = WarpOf(self);
  Meeting* const end = warp.meetings + warp.open_meetings;
  Meeting* const meeting =
      std::find_if(warp.meetings, end, [mask](const Meeting& open) { return open.mask == mask; });
  if (meeting == end) {
    *meeting = {mask, 0, complete};  // each has a lane that waits: there is room
    ++warp.open_meetings;
  }
  if (meeting->complete != complete) {
    RecordError(ThreadName() + ": other lanes of the mask are at another warp operation than " +
                Place(where));
    Stop();
  }
  warp.operands[self.view.lane] = operand;
  meeting->arrived |= bit;
  if (meeting->arrived != (mask & warp.live)) {
    Leave(State::kAtWarpOperation, where);
    return;
  }
  Finish(meeting);
  warp.ready &= ~bit;  // it goes on at once
}

// All have come. Makes them ready and closes the meeting.
void BlockRunner::Finish(Meeting* closing) {
  Warp& warp = WarpOf(*running_);
  const Meeting meeting = *closing;
  *closing = warp.meetings[--warp.open_meetings];
  meeting.complete(warp.operands, meeting.arrived);
  const int first = running_->number - running_->view.lane;
  for (std::uint32_t lanes = meeting.arrived; lanes != 0; lanes &= lanes - 1) {
    MakeReady(*threads_[static_cast<std::size_t>(first + std::countr_zero(lanes))]);
  }
}

// The running thread was the last that others of its warp waited for.
void BlockRunner::EndLane() {
  Warp& warp = WarpOf(*running_);
  warp.live &= ~(1u << running_->view.lane);
  for (int i = warp.open_meetings - 1; i >= 0; --i) {  // closing one moves the last into its place
    Meeting& meeting = warp.meetings[i];
    if (meeting.arrived == (meeting.mask & warp.live)) {
      Finish(&meeting);
    }
  }
}

void BlockRunner::OrderedWarpBarrier(std::uint32_t mask, const std::source_location& where) {
  Warp& warp = WarpOf(*running_);
  const auto key = static_cast<std::size_t>(std::countr_zero(mask | 0x80000000u));
  char* const order = &warp.order[warp.phase[key] % 2][key];
  Release(order);
  // The phase moves on when all have come, before any lane goes on.
  Collective(
      mask,
      [](void* const* operands, std::uint32_t lanes) {
        ++*static_cast<std::uint8_t*>(operands[std::countr_zero(lanes)]);
      },
      &warp.phase[key], where);
  Acquire(order);
}

std::string BlockRunner::BlockName() const {
  return "block " + Triple(running_->view.block_index);
}

std::string BlockRunner::ThreadName() const {
  return BlockName() + " thread " + Triple(running_->view.thread_index);
}

std::string BlockRunner::StuckMessage() const {
  struct Group {
    std::string what;
    int threads = 0;
  };
  std::vector<Group> groups;
  for (int i = 0; i < thread_count_; ++i) {
    const CudaThread& thread = *threads_[static_cast<std::size_t>(i)];
    std::string what = "could go on";
    if (thread.state == State::kEnded) {
      what = "have ended";
    } else if (thread.state == State::kAtBarrier) {
      what = "at the barrier " + Place(thread.waits_at);
    } else if (thread.state == State::kAtWarpOperation) {
      what = "at the warp operation " + Place(thread.waits_at);
    }
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&what](const Group& g) { return g.what == what; });
    if (group == groups.end()) {
      groups.push_back({what, 0});
      group = groups.end() - 1;
    }
    ++group->threads;
  }
  std::string message = "divergent threads in " + BlockName() + ":";
  for (const Group& group : groups) {
    message +=
        (&group == groups.data() ? " " : ", ") + std::to_string(group.threads) + " " + group.what;
  }
  return message;
}

std::string Triple(uint3 value) {
  return "(" + std::to_string(value.x) + ", " + std::to_string(value.y) + ", " +
         std::to_string(value.z) + ")";
}

}  // namespace baton::emulated
