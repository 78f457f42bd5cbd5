#include "kvtransfer/grpc_stream/outgoing_frames.h"

#include <algorithm>
#include <utility>

#include "common/crc32c.h"

namespace baton::grpc_stream {

void OutgoingFrames::Push(OutgoingMessage message) {
  (message.payload.empty() ? control_ : data_).push_back(std::move(message));
}

OutgoingFrames::Cut OutgoingFrames::Next() {
  if (control_.empty()) {
    return NextOfData();
  }
  Cut cut{.frame = {.header = std::move(control_.front().header)}, .ends = control_.front().token};
  control_.pop_front();
  return cut;
}

OutgoingFrames::Cut OutgoingFrames::NextOfData() {
  OutgoingMessage& message = data_.front();
  if (left_ == 0) {  // its first frame
    for (const std::span<const std::byte> part : message.payload) {
      left_ += part.size();
    }
  }
  Cut cut{.frame = {.header = std::exchange(message.header, {})}};
  const std::size_t bytes = std::min(left_, kFramePayloadBytes);
  left_ -= bytes;
  cut.frame.more_bytes = left_;
  cut.frame.payload.reserve(bytes);
  while (cut.frame.payload.size() < bytes) {
    const std::span<const std::byte> rest = message.payload[part_].subspan(part_sent_);
    const std::size_t length = std::min(rest.size(), bytes - cut.frame.payload.size());
    const std::string_view taken(reinterpret_cast<const char*>(rest.data()), length);
    if (message.send_checksum) {
      crc32c_ = Crc32c(taken, crc32c_);
    }
    cut.frame.payload.append(taken);
    part_sent_ += length;
    if (length == rest.size()) {
      ++part_;
      part_sent_ = 0;
    }
  }
  if (left_ == 0) {
    cut.ends = message.token;
    cut.frame.crc32c = std::exchange(crc32c_, 0);
    part_ = 0;
    part_sent_ = 0;
    data_.pop_front();
  }
  return cut;
}

std::vector<TransferToken> OutgoingFrames::TakeUnfinished() {
  std::vector<TransferToken> tokens;
  for (auto* queue : {&control_, &data_}) {
    for (const OutgoingMessage& message : *queue) {
      tokens.push_back(message.token);
    }
    queue->clear();
  }
  return tokens;
}

}  // namespace baton::grpc_stream
