#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/transfer_shape.h"

namespace baton {

// One transfer, as measured by the side that receives.
struct TransferSample {
  double seconds = 0;               // from asking for the blocks until the last byte is in place
  double posting_seconds = 0;       // of the threads that compute, on both sides, spent on calls
  double sender_cpu_seconds = 0;    // of the whole process
  double receiver_cpu_seconds = 0;  // of the whole process
  double piece_bytes = 0;           // mean length of the contiguous ranges that were moved
  bool verified = false;            // every byte
  std::string carrier;              // what moved the bytes: "tcp", "rc_verbs", "memcpy"
};

// The receiving side of one way to move blocks: owns the pool they go to and, where there is one,
// the process that sends.
//
// Not thread-safe.
class TransferReceiver {
 public:
  virtual ~TransferReceiver() = default;
  virtual absl::StatusOr<TransferSample> Transfer(Piece piece, int round) = 0;
};

// A way to move blocks: a row of the table for each kind of piece.
struct TransferRow {
  std::string name;
  // Row that this one is held against; empty: this is one of the machine's limits.
  std::string limit;
  std::function<absl::StatusOr<std::unique_ptr<TransferReceiver>>(const TransferShape&)> receive;
  // Main of the sending process; returns when its standard input ends. Empty: none is needed.
  std::function<absl::Status(const TransferShape&)> send;
};

// All rows, limits first. One more transport is one more entry in transfer_row.cc.
const std::vector<TransferRow>& TransferRows();
// nullptr when there is none.
const TransferRow* FindTransferRow(const std::string& name);

// Arguments of this program that make it the receiver or the sender of a row.
std::vector<std::string> EndCommand(const std::string& end,
                                    const std::string& row,
                                    const TransferShape& shape);
inline constexpr char kReceiveEnd[] = "receive-end";
inline constexpr char kSendEnd[] = "send-end";

// Main of a sending process.
absl::Status RunSenderOf(const TransferRow& row, const TransferShape& shape);
// Main of a receiving process: answers each line "transfer NAME PIECE ROUND" with a JSON object.
absl::Status RunReceiver(const TransferRow& row, const TransferShape& shape);

// Congestion control of the TCP connections that this process has: "cubic", "bbr,cubic"; empty when
// it has none.
std::string CongestionControl();

}  // namespace baton
