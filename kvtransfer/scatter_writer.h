#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kvtransfer/transport.h"

namespace baton {

// Fills the destinations of a payload, in order, with what arrives of it piece by piece.
//
// Not thread-safe: used only by the transfer thread.
class ScatterWriter {
 public:
  // `copied` may be null; it then learns nothing.
  ScatterWriter(std::vector<std::span<std::byte>> destinations,
                std::shared_ptr<CopiedChecksum> copied)
      : destinations_(std::move(destinations)), copied_(std::move(copied)) {}

  // REQUIRES: so much room is left.
  void Write(std::span<const std::byte> bytes);
  // The sender's transport has said the payload's checksum.
  void SetSent(std::uint32_t crc32c) {
    if (copied_ != nullptr) {
      copied_->sent = crc32c;
    }
  }
  std::size_t written() const { return written_; }

 private:
  std::vector<std::span<std::byte>> destinations_;
  std::shared_ptr<CopiedChecksum> copied_;  // shared with whoever made the plan
  std::size_t written_ = 0;
  std::size_t next_ = 0;    // destination that is being filled
  std::size_t filled_ = 0;  // of it
};

}  // namespace baton
