#include "kernels/cuda/upload_ring.h"

#include <algorithm>
#include <cstring>

#include "common/status_macros.h"

namespace baton::cuda {
namespace {

constexpr std::size_t kPieces = 3;
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

}  // namespace

absl::StatusOr<UploadRing> UploadRing::Create(Device& device, const Stream& stream) {
  UploadRing ring(device, stream);
  for (std::size_t i = 0; i < kPieces; ++i) {
    Piece piece;
    ASSIGN_OR_RETURN(piece.memory, PinnedBuffer<std::byte>::Create(device, kPieceBytes));
    ASSIGN_OR_RETURN(piece.read, Event::Create(device));
    ring.pieces_.push_back(std::move(piece));
  }
  return ring;
}

absl::Status UploadRing::Upload(std::byte* destination,
                                std::size_t bytes,
                                absl::FunctionRef<absl::Status(std::span<std::byte>)> fill) {
  Piece& piece = pieces_[next_];
  next_ = (next_ + 1) % pieces_.size();
  RETURN_IF_ERROR(piece.read.Synchronize());
  RETURN_IF_ERROR(fill(piece.memory.span().first(bytes)));
  RETURN_IF_ERROR(device_->Copy({.destination = destination,
                                 .source = piece.memory.data(),
                                 .bytes = bytes,
                                 .direction = CopyDirection::kHostToDevice},
                                stream_->get()));
  return piece.read.Record(*stream_);
}

absl::Status UploadRing::UploadAll(std::byte* destination, std::span<const std::byte> source) {
  while (!source.empty()) {
    const std::size_t bytes = std::min(source.size(), piece_bytes());
    RETURN_IF_ERROR(Upload(destination, bytes, [&](std::span<std::byte> piece) {
      std::memcpy(piece.data(), source.data(), bytes);
      return absl::OkStatus();
    }));
    destination += bytes;
    source = source.subspan(bytes);
  }
  return absl::OkStatus();
}

absl::Status UploadRing::Download(std::span<std::byte> destination, const std::byte* source) {
  // Waits for each piece in turn: nothing that is in a hurry comes this way.
  while (!destination.empty()) {
    Piece& piece = pieces_[next_];
    RETURN_IF_ERROR(piece.read.Synchronize());
    const std::size_t bytes = std::min(destination.size(), piece_bytes());
    RETURN_IF_ERROR(device_->Copy({.destination = piece.memory.data(),
                                   .source = source,
                                   .bytes = bytes,
                                   .direction = CopyDirection::kDeviceToHost},
                                  stream_->get()));
    RETURN_IF_ERROR(stream_->Synchronize());
    std::memcpy(destination.data(), piece.memory.data(), bytes);
    destination = destination.subspan(bytes);
    source += bytes;
  }
  return absl::OkStatus();
}

}  // namespace baton::cuda
