#pragma once

#include <string_view>

namespace baton {

// What cores of this machine can do, measured now: other jobs and the clock move it by a factor of
// two within an hour, so figures are only worth comparing with limits measured beside them.
//
// All rates are by the processor time of each thread, so that a core that is shared with another
// process counts as if it were not; with several threads, all run at once and their rates are
// added. The best of a few attempts: noise only takes away.

// Multiply-adds on registers alone, in floating point operations per second, with the instructions
// that a code path of kernels/cpu multiplies with: `amx` bf16 products of tiles, `avx512bf16`
// vdpbf16ps, `avx2` and `plain` float32 multiply-adds. 0 where the processor has no such
// instructions or the path is none of these.
double MeasurePeakFlops(std::string_view isa, int threads);

// One thread, bf16 dot products of vectors where the processor has them, else float32.
double MeasurePeakFlops();

// Reading 512 MiB in huge pages, more than caches hold, each thread its own part, in bytes per
// second: the best of a plain loop, one that asks for lines ahead of their use, and loops over two
// and over four streams.
double MeasureReadBytesPerSecond(int threads = 1);

// Seconds of processor time that this process has used.
double ProcessCpuSeconds();

}  // namespace baton
