#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "tests/emulation/runtime.h"

// What the wrappers of kernels/cuda/ptx.cuh do under emulation; their contracts are there. Shared
// and global memory is touched by plain loads and stores of inline functions, so that the
// sanitizers see it in the kernel that asks for it. Registers are exchanged by functions of
// emulated_ptx.cc, which no sanitizer sees.
namespace baton::emulated {

enum class TileElement { kBFloat16, kHalf };

void MultiplyTiles(TileElement element, float* d, const unsigned* a, const unsigned* b);

// What a lane brings to ldmatrix and takes from it.
struct MatrixRows {
  std::uint32_t row[4] = {};     // the row that this lane names: 8 elements of 16 bits
  std::uint32_t result[4] = {};  // a pair of each matrix
  int matrices = 0;
  bool transposed = false;
};
void ExchangeMatrixRows(MatrixRows* rows);

// As a GPU does, fails the kernel unless the address is a multiple of 16.
inline void RequireAlignment(const void* address, const char* message) {
  if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) {
    FailKernel(message);
  }
}

using Word32 [[gnu::may_alias]] = std::uint32_t;
using Word64 [[gnu::may_alias]] = std::uint64_t;

inline void LoadMatrices(unsigned* r, int matrices, const void* row, bool transposed) {
  MatrixRows rows{.matrices = matrices, .transposed = transposed};
  if (current_thread->lane < matrices * 8) {
    RequireAlignment(row, "ldmatrix: the address is no multiple of 16");
    const auto* const words = static_cast<const Word32*>(row);
    for (int i = 0; i < 4; ++i) {
      rows.row[i] = words[i];
    }
  }
  ExchangeMatrixRows(&rows);
  for (int m = 0; m < matrices; ++m) {
    r[m] = rows.result[m];
  }
}

// The target is poisoned now and filled by the wait: nobody can use what the wait or a barrier
// should have brought.
inline void CopyAsync16(void* shared, const void* global, int source_bytes) {
  RequireAlignment(shared, "cp.async to shared memory: the address is no multiple of 16");
  RequireAlignment(global, "cp.async from global memory: the address is no multiple of 16");
  auto* const target = static_cast<Word64*>(shared);
  target[0] = kPoison;
  target[1] = kPoison;
  if (source_bytes > 0) {  // read it here, too: a bad address belongs to this line
    const auto* const source = static_cast<const volatile char*>(global);
    static_cast<void>(source[0]);
    static_cast<void>(source[source_bytes - 1]);
  }
  IssueAsyncCopy({shared, global, source_bytes});
}

inline void WaitForCopies(int groups) {
  AsyncCopy copy;
  while (NextAsyncCopy(groups, &copy)) {
    if (copy.source_bytes == 16) {
      static_cast<Word64*>(copy.target)[0] = static_cast<const Word64*>(copy.source)[0];
      static_cast<Word64*>(copy.target)[1] = static_cast<const Word64*>(copy.source)[1];
      continue;
    }
    auto* const target = static_cast<char*>(copy.target);
    for (int i = 0; i < 16; ++i) {
      target[i] = i < copy.source_bytes ? static_cast<const char*>(copy.source)[i] : '\0';
    }
  }
}

inline float Exp2(float x) {
  const float result = std::exp2(x);
  return result < 0x1p-126f ? 0.0f : result;  // a NaN stays
}

}  // namespace baton::emulated
