#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/strong_id.h"
#include "kvtransfer/transport.h"

namespace baton {

using CopyId = StrongId<struct CopyIdTag, std::uint64_t>;

// Copies between device memory and pinned host memory. kvtransfer knows no devices: the worker
// makes one from its device layer.
//
// Not thread-safe: made, used and destroyed by the transfer thread.
class StagingCopier {
 public:
  // Waits for every copy under way, then frees the pinned memory.
  virtual ~StagingCopier() = default;

  // Host memory for the slots; lives as long as the copier. RESOURCE_EXHAUSTED when there is none.
  virtual absl::StatusOr<std::span<std::byte>> AllocatePinned(std::size_t bytes) = 0;

  // Start to copy parts of device memory, one after the other, to host memory from `host` on, or
  // the other way. Return at once; the lists of parts are read before. After an error nothing is
  // under way. No more copies are under way than there are slots.
  virtual absl::StatusOr<CopyId> StartToHost(ConstParts device, std::byte* host) = 0;
  virtual absl::StatusOr<CopyId> StartToDevice(const std::byte* host, MutableParts device) = 0;

  // nullopt while the copy is under way; never waits. Otherwise how it ended: it touches no memory
  // any more, what the device starts from now on sees its bytes, and its id is used up.
  virtual std::optional<absl::Status> Poll(CopyId copy) = 0;
};

// Called on the transfer thread, before it makes the transport.
using StagingCopierFactory = std::function<absl::StatusOr<std::unique_ptr<StagingCopier>>()>;

}  // namespace baton
