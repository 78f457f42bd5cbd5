#include "kvtransfer/scatter_writer.h"

#include <algorithm>

#include "kvtransfer/checksum.h"

namespace baton {

void ScatterWriter::Write(std::span<const std::byte> bytes) {
  written_ += bytes.size();
  while (!bytes.empty()) {
    const std::span<std::byte> to = destinations_[next_].subspan(filled_);
    const std::size_t length = std::min(bytes.size(), to.size());
    if (copied_ != nullptr) {
      copied_->crc32c = CopyWithChecksum(to.data(), bytes.data(), length, copied_->crc32c);
      copied_->bytes += length;
    } else {
      StreamCopy(to.data(), bytes.data(), length);
    }
    bytes = bytes.subspan(length);
    filled_ += length;
    if (length == to.size()) {
      ++next_;
      filled_ = 0;
    }
  }
}

}  // namespace baton
