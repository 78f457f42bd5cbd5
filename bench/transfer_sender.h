#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/line_child.h"
#include "bench/transfer_shape.h"

namespace baton {

// The sending side of one way to move blocks, in a process of its own.
//
// Not thread-safe.
class TransferSender {
 public:
  struct Report {
    double posting_seconds = 0;
    double piece_bytes = 0;
  };

  virtual ~TransferSender() = default;
  // What the receiver has to know to reach this one.
  virtual std::string Address() const = 0;
  // Fills the source blocks of `round`. `ticket`: what the receiver calls this transfer.
  virtual absl::Status Prepare(Piece piece, int round, const std::string& ticket) = 0;
  // Sends what was prepared; returns when the receiver has it.
  virtual absl::StatusOr<Report> Send() = 0;
};

// Main of a sending process: does what a SenderProcess asks for until standard input ends.
absl::Status RunSender(TransferSender& sender);

// A sending process as its receiver sees it; ended by the destructor.
//
// Not thread-safe.
class SenderProcess {
 public:
  static absl::StatusOr<std::unique_ptr<SenderProcess>> Start(const std::string& row,
                                                              const TransferShape& shape);

  const std::string& address() const { return address_; }
  absl::Status Prepare(Piece piece, int round, const std::string& ticket);
  // Lets it send what it has prepared.
  absl::Status Go() { return child_->WriteLine("go"); }
  struct Done {
    TransferSender::Report report;
    double cpu_seconds = 0;  // of the whole process, from Go to the end
  };
  absl::StatusOr<Done> AwaitDone();

 private:
  SenderProcess(std::unique_ptr<LineChild> child, std::string address)
      : child_(std::move(child)), address_(std::move(address)) {}

  const std::unique_ptr<LineChild> child_;
  const std::string address_;
};

// Longest that one step of a transfer may take; machines that serve others too are slow at times.
inline constexpr Duration kTransferPatience = std::chrono::seconds(30);

}  // namespace baton
