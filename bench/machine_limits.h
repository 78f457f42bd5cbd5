#pragma once

namespace baton {

// What one core of this machine can do, measured now: other jobs and the clock move it by a factor
// of two within an hour, so figures are only worth comparing with limits measured beside them.
//
// Multiply-adds on registers, in floating point operations per second: bf16 dot products where the
// processor has them, float32 otherwise.
double MeasurePeakFlops();

// Reading 256 MiB that no cache holds, in bytes per second.
double MeasureReadBytesPerSecond();

// Seconds of processor time that this process has used.
double ProcessCpuSeconds();

}  // namespace baton
