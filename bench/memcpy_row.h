#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "bench/transfer_pool.h"
#include "bench/transfer_row.h"

namespace baton {

// One core copies the pieces from a pool in `source` memory to one in huge pages, within one
// process. Shared memory is read through a mapping of its own, populated and read-only, as another
// process would.
absl::StatusOr<std::unique_ptr<TransferReceiver>> MakeMemcpyReceiver(const TransferShape& shape,
                                                                     PoolMemory source);

}  // namespace baton
