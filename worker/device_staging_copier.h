#pragma once

#include "kernels/cuda/device.h"
#include "kvtransfer/memory_kind.h"
#include "kvtransfer/staged/staging_copier.h"
#include "kvtransfer/transport.h"

namespace baton {

// Staging for pools of `device`, on a stream of its own: pieces of equal size are gathered and
// scattered by one kernel, which reads and writes the pinned memory itself; others are copied one
// by one. An event tells when a copy has ended.
//
// `device` outlives the copier.
StagingCopierFactory MakeDeviceStagingCopier(cuda::Device& device);

// What moves a pool of `device`: `plain`, which moves host memory only, by way of staging; `plain`
// itself when there is no device. The device outlives every transport that is made.
TransportFactory StageFor(cuda::Device* device, TransportFactory plain);
inline MemoryKind MemoryKindOf(const cuda::Device* device) {
  return device == nullptr ? MemoryKind::kHost : MemoryKind::kCudaDevice;
}

}  // namespace baton
