#pragma once

#include <cstdint>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/launch_types.h"

// Kernels of a few lines around the wrappers of kernels/cuda/ptx.cuh and elements.cuh, for
// ptx_test.cc. All run on the default stream; pointers are device memory.
namespace baton {

struct PtxKernels {
  // values[i] = the element with these bits, and back.
  cuda::LaunchCode (*to_float)(cuda::Element, const std::uint16_t* bits, float* values, int count);
  cuda::LaunchCode (*from_float)(cuda::Element,
                                 const float* values,
                                 std::uint16_t* bits,
                                 int count);
  // pairs[i] = values[2i], values[2i + 1]; unpacked: the same numbers again.
  cuda::LaunchCode (*pack)(
      cuda::Element, const float* values, unsigned* pairs, float* unpacked, int pairs_count);
  // What each lane holds, one after the other: a [32, 4], b [32, 2], c and d [32, 4].
  cuda::LaunchCode (*multiply_tiles)(
      cuda::Element, const unsigned* a, const unsigned* b, const float* c, float* d);
  // Shared memory is [rows, 8]; lane i names row row_of[i], if the load has that many. loaded [32,
  // matrices].
  cuda::LaunchCode (*load_matrices)(int matrices,
                                    bool transposed,
                                    const std::uint16_t* elements,
                                    int rows,
                                    const int* row_of,
                                    unsigned* loaded);
  // One thread copies pieces of 16 bytes into shared memory, each in a group of its own, waits
  // until at most `kept_groups` (0 to 4) are on their way, and the block writes what is there to
  // seen [pieces, 4].
  cuda::LaunchCode (*copy_async)(int kept_groups,
                                 const std::uint32_t* source,
                                 const int* source_bytes,
                                 int pieces,
                                 std::uint32_t* seen);
  cuda::LaunchCode (*exp2)(const float* x, float* y, int count);
};

// Of the library that is linked: one of the two.
const PtxKernels& EmulatedPtxKernels();
const PtxKernels& GpuPtxKernels();

}  // namespace baton
