#pragma once

#include <functional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "kvtransfer/ucx/ucx_endpoint.h"

namespace baton::ucx {

// Reads the pools of peers on RDMA lanes.
//
// Not thread-safe: part of a transport, and used like it.
class UcxReader final : public PoolReader {
 public:
  // The peer's endpoint; nullptr when it is not open.
  using FindOpen = std::function<Endpoint*(PeerId peer)>;

  // All outlive the reader.
  UcxReader(UcxEvents& events, TransportHandler& handler, FindOpen find_open)
      : events_(events), handler_(handler), find_open_(std::move(find_open)) {}

  void SetDoor(std::string door) { door_ = std::move(door); }

  TransportKind kind() const override { return TransportKind::kRdma; }
  std::string Door() const override { return door_; }
  absl::Status Open(PeerId peer, std::string_view door, std::uint64_t pool_bytes) override;
  absl::Status Read(PeerId peer, PoolRead read) override;

  // One get of a read is over.
  void GetDone(PeerId peer, TransferToken token, const absl::Status& status);

 private:
  // Gets of one read; reported when the last is over.
  struct PendingRead {
    int gets = 0;
    absl::Status status;
  };

  UcxEvents& events_;
  TransportHandler& handler_;
  const FindOpen find_open_;
  std::string door_;
  absl::flat_hash_map<TransferToken, PendingRead> reads_;
};

}  // namespace baton::ucx
