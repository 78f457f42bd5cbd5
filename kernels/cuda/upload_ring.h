#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/handles.h"

namespace baton::cuda {

// A few pinned pieces of host memory through which pageable memory gets to the device and back: one
// piece is filled while another is on its way.
//
// Not thread-safe. Borrows device and stream, which must outlive it.
class UploadRing {
 public:
  static absl::StatusOr<UploadRing> Create(Device& device, const Stream& stream);

  std::size_t piece_bytes() const { return pieces_.front().memory.size_bytes(); }

  // Has `fill` write the next `bytes` bytes of the upload into pinned memory, and puts their copy
  // to `destination` on the stream. REQUIRES: bytes <= piece_bytes().
  absl::Status Upload(std::byte* destination,
                      std::size_t bytes,
                      absl::FunctionRef<absl::Status(std::span<std::byte>)> fill);
  // Copies any amount of host memory; `source` is free when it returns.
  absl::Status UploadAll(std::byte* destination, std::span<const std::byte> source);
  // Copies any amount from the device to host memory, and waits for it.
  absl::Status Download(std::span<std::byte> destination, const std::byte* source);

 private:
  struct Piece {
    PinnedBuffer<std::byte> memory;
    Event read;  // the copy from it has been done
  };

  UploadRing(Device& device, const Stream& stream) : device_(&device), stream_(&stream) {}

  Device* device_;
  const Stream* stream_;
  std::vector<Piece> pieces_;
  std::size_t next_ = 0;
};

}  // namespace baton::cuda
