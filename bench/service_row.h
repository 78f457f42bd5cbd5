#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/transfer_pool.h"
#include "bench/transfer_row.h"
#include "kvtransfer/transport.h"

namespace baton {

// How both processes of a row set up their TransferService.
struct ServiceRow {
  // Called before any other thread runs.
  std::function<TransportFactory()> transport;
  PoolMemory memory = PoolMemory::kHugePages;  // of the sender's pool
  bool mapped = false;                         // kSharedFile: the receiver reads it by mapping it
  bool checksums = true;                       // of both sides
};

// A handoff from one TransferService to another, as between two workers. Blocks become ready as in
// a prefill worker, chunks of 256 tokens at a time. With Piece::kBlock all layers of a chunk at
// once. With Piece::kLayer one layer of the whole prompt at a time, first every other one and, when
// these have been handed to the transport, those between, so that no two travel as one piece.
absl::StatusOr<std::unique_ptr<TransferReceiver>> MakeServiceReceiver(const std::string& row,
                                                                      const ServiceRow& service,
                                                                      const TransferShape& shape);
absl::Status RunServiceSender(const ServiceRow& service, const TransferShape& shape);

}  // namespace baton
