#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <vector>

namespace baton::staged {

// Slots of pinned host memory for one direction. A message takes as many as it fills, all at once
// or none.
//
// Not thread-safe: used only by the transfer thread.
class SlotRing {
 public:
  // `memory`: slots one after the other; not owned, outlives the ring. `free_slots`: kept up to
  // date for others to watch; outlives the ring too.
  SlotRing(std::span<std::byte> memory, std::size_t slot_bytes, std::atomic<int>& free_slots)
      : slot_bytes_(slot_bytes), slots_(memory.size() / slot_bytes), gauge_(free_slots) {
    for (std::size_t i = slots_; i > 0; --i) {
      free_.push_back(memory.data() + (i - 1) * slot_bytes);
    }
    Show();
  }

  // Whether a message of this size can ever be taken.
  bool Fits(std::size_t bytes) const { return SlotsFor(bytes) <= slots_; }

  // Whether it can be taken now.
  bool HasRoomFor(std::size_t bytes) const { return SlotsFor(bytes) <= free_.size(); }

  // Slots for `bytes`, each filled before the next one; empty when too few are free.
  std::vector<std::span<std::byte>> Take(std::size_t bytes) {
    std::vector<std::span<std::byte>> taken;
    if (!HasRoomFor(bytes)) {
      return taken;
    }
    while (bytes > 0) {
      const std::size_t used = bytes < slot_bytes_ ? bytes : slot_bytes_;
      taken.emplace_back(free_.back(), used);
      free_.pop_back();
      bytes -= used;
    }
    Show();
    return taken;
  }

  void Return(std::vector<std::span<std::byte>>& slots) {
    for (const std::span<std::byte> slot : slots) {
      free_.push_back(slot.data());
    }
    slots.clear();
    Show();
  }

 private:
  std::size_t SlotsFor(std::size_t bytes) const { return (bytes + slot_bytes_ - 1) / slot_bytes_; }
  void Show() { gauge_.store(static_cast<int>(free_.size()), std::memory_order_relaxed); }

  const std::size_t slot_bytes_;
  const std::size_t slots_;
  std::atomic<int>& gauge_;
  std::vector<std::byte*> free_;
};

}  // namespace baton::staged
