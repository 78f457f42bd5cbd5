#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/transfer_row.h"

namespace baton {

// What a program reaches with one plain TCP connection over loopback and nothing else: blocking
// writev and readv straight from and to the scattered pieces, about 3 MB a call. With `checksums`
// each call's bytes are followed by their CRC32C, computed by one side and checked by the other.
absl::StatusOr<std::unique_ptr<TransferReceiver>> MakeSocketReceiver(const std::string& row,
                                                                     const TransferShape& shape,
                                                                     bool checksums);
absl::Status RunSocketSender(const TransferShape& shape, bool checksums);

}  // namespace baton
