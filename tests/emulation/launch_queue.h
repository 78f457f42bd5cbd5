#pragma once

#include <functional>

#include "kernels/cuda/launch_types.h"
#include "tests/emulation/runtime.h"

namespace baton::emulated {

// What a stream handle points to under emulation. The host implementation of the device layer
// derives its streams from it, with deferred work, events and capture; after it has run a piece of
// work it asks TakeKernelError() of runtime.h whether a kernel failed, which for CUDA is an error
// that stays with the context.
class HostStream {
 public:
  virtual ~HostStream() = default;
  // Work runs in the order of the calls, once if it is not captured.
  virtual void Add(std::function<void()> work) = 0;

  cuda::StreamHandle handle() { return reinterpret_cast<cuda::StreamHandle>(this); }
  // nullptr for the null stream.
  static HostStream* Of(cuda::StreamHandle handle) { return reinterpret_cast<HostStream*>(handle); }
};

// Hands work to the stream; for the null stream it runs before Enqueue returns.
inline void Enqueue(cuda::StreamHandle stream, std::function<void()> work) {
  if (HostStream* const host_stream = HostStream::Of(stream)) {
    host_stream->Add(std::move(work));
  } else {
    work();
  }
}

}  // namespace baton::emulated
