#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvtransfer/grpc_stream/stream.h"
#include "kvtransfer/scatter_writer.h"
#include "kvtransfer/transport.h"

namespace baton::grpc_stream {

// A payload, of which frames may still be missing: on its way to the plan's destinations, held
// until these are known, or dropped when the plan does not want it.
//
// Not thread-safe: used only by the transfer thread.
class IncomingPayload {
 public:
  IncomingPayload(ReceivePlan plan, std::size_t bytes)
      : token_(plan.token), accepted_(plan.accept), copied_(plan.copied), missing_(bytes) {
    if (plan.accept && !plan.later) {
      writer_.emplace(std::move(plan.destinations), std::move(plan.copied));
    }
  }

  TransferToken token() const { return token_; }
  bool accepted() const { return accepted_; }
  bool placed() const { return writer_.has_value(); }
  bool whole() const { return missing_ == 0; }

  // A frame of it; one that has more than is missing is dropped.
  void Take(const Frame& frame) {
    if (frame.payload.size() > missing_) {
      return;
    }
    missing_ -= frame.payload.size();
    sent_ = frame.crc32c;
    if (writer_) {
      Write(frame.payload);
    } else if (accepted_) {
      held_.append(frame.payload);
    }
  }

  // REQUIRES: accepted, and not placed.
  void Place(std::vector<std::span<std::byte>> destinations) {
    writer_.emplace(std::move(destinations), copied_);
    Write(std::exchange(held_, {}));
  }

 private:
  void Write(const std::string& bytes) {
    writer_->Write(std::as_bytes(std::span(bytes)));
    if (whole()) {
      writer_->SetSent(sent_);
    }
  }

  TransferToken token_;
  bool accepted_ = false;
  std::shared_ptr<CopiedChecksum> copied_;  // of the plan; may be null
  std::size_t missing_ = 0;
  std::optional<ScatterWriter> writer_;  // once it is known where it goes
  std::string held_;                     // until then
  std::uint32_t sent_ = 0;               // the sender's checksum
};

}  // namespace baton::grpc_stream
