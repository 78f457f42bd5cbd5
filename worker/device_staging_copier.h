#pragma once

#include "kernels/cuda/device.h"
#include "kvtransfer/staged/staging_copier.h"

namespace baton {

// Staging for pools of `device`, on a stream of its own: pieces of equal size are gathered and
// scattered by one kernel, which reads and writes the pinned memory itself; others are copied one
// by one. An event tells when a copy has ended.
//
// `device` outlives the copier.
StagingCopierFactory MakeDeviceStagingCopier(cuda::Device& device);

}  // namespace baton
