#include "router/prefix_index_sets.h"

#include <algorithm>
#include <bit>

namespace baton {

bool MemoryRoom::Take(std::size_t bytes) {
  std::size_t taken = taken_bytes_.load(std::memory_order_relaxed);
  do {
    if (bytes > limit_bytes_ - taken) {
      return false;
    }
  } while (!taken_bytes_.compare_exchange_weak(taken, taken + bytes, std::memory_order_relaxed));
  return true;
}

WorkerSets::WorkerSets(MemoryRoom& room)
    : room_(room),
      chunks_(std::min(room.limit_bytes() / (std::size_t{16} * kChunkUnits) + 1,
                       (std::size_t{1} << 28) / kChunkUnits)) {
  room_.Take(chunks_.size() * sizeof(chunks_[0]));
}

std::uint32_t WorkerSets::UnitsOf(Kind kind) {
  switch (kind) {
    case Kind::kList6:
      return 1;
    case Kind::kList14:
      return 2;
    case Kind::kList30:
      return 4;
    case Kind::kBitmap:
      return 1 + kMostWorkers / 32 / kUnitWords;
  }
  return 0;
}

std::uint32_t WorkerSets::SetWordsOf(Kind kind) {
  return kind == Kind::kBitmap ? kMostWorkers / 32 : UnitsOf(kind) * kUnitWords - 1;
}

WorkerSets::AtomicWord* WorkerSets::NodeOf(Word word) const {
  const std::uint32_t unit = word & 0x0fffffff;
  return chunks_[unit / kChunkUnits].load(std::memory_order_acquire) +
         std::size_t{kUnitWords} * (unit % kChunkUnits);
}

WorkerSets::Slots WorkerSets::SlotsOf(Word word) const {
  Slots slots;
  if (word == 0) {
    return slots;
  }
  if (!IsStored(word)) {
    slots.push_back(word & kSlotMask);
    if ((word & kStored) == kTwo) {
      slots.push_back(word >> 12 & kSlotMask);
    }
    return slots;
  }
  const AtomicWord* set = NodeOf(word) + 1;
  for (std::uint32_t i = 0; i < SetWordsOf(KindOf(word)); ++i) {
    std::uint32_t value = set[i].load(std::memory_order_relaxed);
    if (KindOf(word) == Kind::kBitmap) {
      for (; value != 0; value &= value - 1) {
        slots.push_back(32 * i + static_cast<std::uint32_t>(std::countr_zero(value)));
      }
      continue;
    }
    for (const std::uint32_t slot : {value & 0xffff, value >> 16}) {
      if (slot != kNobody) {
        slots.push_back(slot);
      }
    }
  }
  return slots;
}

std::optional<WorkerSets::Word> WorkerSets::TakeNode(Kind kind) {
  const auto index = static_cast<std::size_t>(kind);
  absl::MutexLock lock(&mutex_);
  if (const Word word = free_[index]; word != 0) {
    free_[index] = NodeOf(word)[1].load(std::memory_order_relaxed);
    return word;
  }
  if (end_unit_[index] - next_unit_[index] < UnitsOf(kind)) {
    constexpr std::size_t kChunkWords = std::size_t{kChunkUnits} * kUnitWords;
    if (owned_.size() == chunks_.size() || !room_.Take(kChunkWords * sizeof(AtomicWord))) {
      return std::nullopt;
    }
    owned_.push_back(std::make_unique<AtomicWord[]>(kChunkWords));
    chunks_[owned_.size() - 1].store(owned_.back().get(), std::memory_order_release);
    next_unit_[index] = kChunkUnits * static_cast<std::uint32_t>(owned_.size() - 1);
    end_unit_[index] = next_unit_[index] + kChunkUnits;
  }
  const Word word = kStored | static_cast<Word>(kind) << 28 | next_unit_[index];
  next_unit_[index] += UnitsOf(kind);
  return word;
}

void WorkerSets::Release(Word word) {
  if (!IsStored(word)) {
    return;
  }
  absl::MutexLock lock(&mutex_);
  Word& free = free_[static_cast<std::size_t>(KindOf(word))];
  AtomicWord* node = NodeOf(word);
  // Readers may still be at it: what they see from here on must carry another generation.
  node[0].store(node[0].load(std::memory_order_relaxed) + 1, std::memory_order_release);
  node[1].store(free, std::memory_order_release);
  free = word;
}

std::optional<WorkerSets::Word> WorkerSets::Make(const Slots& slots) {
  if (slots.size() <= 2) {
    if (slots.empty()) {
      return 0;
    }
    return slots.size() == 1 ? kOne | slots[0] : kTwo | slots[1] << 12 | slots[0];
  }
  const Kind kind = slots.size() <= 6             ? Kind::kList6
                    : slots.size() <= 14          ? Kind::kList14
                    : slots.size() <= kMostInList ? Kind::kList30
                                                  : Kind::kBitmap;
  const std::optional<Word> word = TakeNode(kind);
  if (!word.has_value()) {
    return std::nullopt;
  }
  AtomicWord* node = NodeOf(*word);
  node[0].store(node[0].load(std::memory_order_relaxed) + 1, std::memory_order_release);
  AtomicWord* set = node + 1;
  for (std::uint32_t i = 0; i < SetWordsOf(kind); ++i) {
    set[i].store(kind == Kind::kBitmap ? 0 : kNobody << 16 | kNobody, std::memory_order_release);
  }
  for (const std::uint32_t slot : slots) {
    AddInPlace(*word, slot);
  }
  return word;
}

bool WorkerSets::AddInPlace(Word word, std::uint32_t slot) {
  AtomicWord* set = NodeOf(word) + 1;
  if (KindOf(word) == Kind::kBitmap) {
    AtomicWord& bits = set[slot / 32];
    bits.store(bits.load(std::memory_order_relaxed) | std::uint32_t{1} << (slot % 32),
               std::memory_order_release);
    return true;
  }
  for (std::uint32_t i = 0; i < SetWordsOf(KindOf(word)); ++i) {
    const std::uint32_t pair = set[i].load(std::memory_order_relaxed);
    if ((pair & 0xffff) == kNobody) {
      set[i].store((pair & 0xffff0000) | slot, std::memory_order_release);
      return true;
    }
    if (pair >> 16 == kNobody) {
      set[i].store((pair & 0xffff) | slot << 16, std::memory_order_release);
      return true;
    }
  }
  return false;
}

bool WorkerSets::Has(Word word, WorkerSlot worker) const {
  if (IsStored(word) && KindOf(word) == Kind::kBitmap) {
    return (NodeOf(word)[1 + worker.value() / 32].load(std::memory_order_relaxed) >>
                (worker.value() % 32) &
            1) != 0;
  }
  const Slots slots = SlotsOf(word);
  return std::find(slots.begin(), slots.end(), worker.value()) != slots.end();
}

std::optional<WorkerSets::Word> WorkerSets::Add(Word word, WorkerSlot worker) {
  if (IsStored(word) && AddInPlace(word, worker.value())) {
    return word;
  }
  Slots slots = SlotsOf(word);
  slots.push_back(worker.value());
  return Make(slots);
}

WorkerSets::Word WorkerSets::Shrunk(Word word) {
  const Slots slots = SlotsOf(word);
  const bool smaller = slots.size() <= 2 || (KindOf(word) == Kind::kList14 && slots.size() <= 4) ||
                       (KindOf(word) == Kind::kList30 && slots.size() <= 10) ||
                       (KindOf(word) == Kind::kBitmap && slots.size() <= kShrinkBitmapAt);
  // Without room for a smaller one it stays where it is.
  return smaller ? Make(slots).value_or(word) : word;
}

WorkerSets::Removal WorkerSets::Remove(Word word, WorkerSlot worker) {
  WorkerBits workers;
  workers.Set(worker.value());
  return Remove(word, workers);
}

WorkerSets::Removal WorkerSets::Remove(Word word, const WorkerBits& workers) {
  if (!IsStored(word)) {
    Slots slots = SlotsOf(word);
    const auto count =
        std::erase_if(slots, [&workers](std::uint32_t slot) { return workers.Has(slot); });
    return {*Make(slots), static_cast<std::uint32_t>(count)};
  }
  std::uint32_t count = 0;
  AtomicWord* set = NodeOf(word) + 1;
  for (std::uint32_t i = 0; i < SetWordsOf(KindOf(word)); ++i) {
    const std::uint32_t before = set[i].load(std::memory_order_relaxed);
    std::uint32_t after = before;
    if (KindOf(word) == Kind::kBitmap) {
      after &= ~workers.words[i];
      count += static_cast<std::uint32_t>(std::popcount(before & ~after));
    } else {
      for (const std::uint32_t shift : {0U, 16U}) {
        const std::uint32_t slot = before >> shift & 0xffff;
        if (slot != kNobody && workers.Has(slot)) {
          after |= kNobody << shift;
          ++count;
        }
      }
    }
    set[i].store(after, std::memory_order_release);
  }
  return {count == 0 ? word : Shrunk(word), count};
}

}  // namespace baton
