#pragma once

namespace baton::cuda {

// A stream of whoever implements Device: a cudaStream_t, or a queue of the emulator. Opaque to
// everybody who only passes it along.
struct StreamTag;
using StreamHandle = StreamTag*;

// What launching a kernel returned: the value of a cudaError_t, 0 when it was taken. Errors of the
// kernel itself show when its stream is waited for.
using LaunchCode = int;

}  // namespace baton::cuda
