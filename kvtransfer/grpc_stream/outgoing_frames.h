#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "kvtransfer/grpc_stream/stream.h"
#include "kvtransfer/transport.h"

namespace baton::grpc_stream {

// Bytes of a payload in one frame: so few that one arrives within the patience of whoever listens
// for signs of life, at a quarter of a megabyte a second too.
inline constexpr std::size_t kFramePayloadBytes = std::size_t{256} * 1024;

// What waits to be written on one stream, cut into frames. Messages without a payload go before the
// next frame of one that has: a heartbeat must not wait behind megabytes, and nothing relies on the
// order of the two.
//
// Not thread-safe: used only by the transfer thread.
class OutgoingFrames {
 public:
  struct Cut {
    Frame frame;
    std::optional<TransferToken> ends;  // the message whose last frame this is
  };

  void Push(OutgoingMessage message);
  bool empty() const { return control_.empty() && data_.empty(); }
  // REQUIRES: not empty.
  Cut Next();
  // Drops all messages of which a frame is still to be cut.
  std::vector<TransferToken> TakeUnfinished();

 private:
  Cut NextOfData();

  std::deque<OutgoingMessage> control_;
  std::deque<OutgoingMessage> data_;
  // Of the first of `data_`: what has gone.
  std::size_t part_ = 0;
  std::size_t part_sent_ = 0;
  std::size_t left_ = 0;
  std::uint32_t crc32c_ = 0;
};

}  // namespace baton::grpc_stream
