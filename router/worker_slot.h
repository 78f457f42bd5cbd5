#pragma once

#include <cstdint>

#include "common/strong_id.h"

namespace baton {

// A worker's place in this router's tables; free for another worker once the former one is
// forgotten everywhere.
using WorkerSlot = StrongId<struct WorkerSlotTag, std::uint32_t>;

// More workers than this are refused.
inline constexpr std::uint32_t kMostWorkers = 4096;

}  // namespace baton
