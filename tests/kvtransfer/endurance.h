#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/random_id.h"
#include "kvtransfer/transfer_types.h"

namespace baton {

// What the two processes of endurance_test agree on.
inline constexpr int kEnduranceBlocks = 4;       // of one handoff
inline constexpr int kEndurancePoolBlocks = 64;  // 16 handoffs at once

// The handoff with this number, in both processes.
inline HandoffId EnduranceId(std::uint64_t number) {
  HandoffId id;
  id.bytes[15] = 1;
  std::memcpy(id.bytes.data(), &number, sizeof(number));
  return id;
}

// What a block of it holds.
inline std::uint64_t EnduranceContent(std::uint64_t number, int block) {
  return number * kEnduranceBlocks + static_cast<std::uint64_t>(block) + 1;
}

// Of this process, as it is now.
struct ProcessUse {
  std::size_t resident_kib = 0;
  std::size_t open_files = 0;

  static ProcessUse Now() {
    std::ifstream statm("/proc/self/statm");
    std::size_t all_pages = 0;
    std::size_t resident_pages = 0;
    statm >> all_pages >> resident_pages;
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return {.resident_kib = resident_pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) / 1024,
            .open_files = static_cast<std::size_t>(std::distance(begin(files), end(files)))};
  }
};

}  // namespace baton
