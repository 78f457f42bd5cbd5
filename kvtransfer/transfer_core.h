#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvtransfer/connection_table.h"
#include "kvtransfer/handoff_fetcher.h"
#include "kvtransfer/handoff_server.h"
#include "kvtransfer/transfer_types.h"
#include "kvtransfer/transport.h"
#include "kvtransfer/wire.h"

namespace baton {

// Everything the transfer thread owns: the transport, the connections, both sides of handoffs.
// Decodes what arrives and hands it to the part it is for; counts what is dropped.
//
// Not thread-safe: made, used and destroyed by the transfer thread.
class TransferCore final : public TransportHandler, public ConnectionTable::Observer {
 public:
  // `options` outlives the core.
  static absl::StatusOr<std::unique_ptr<TransferCore>> Create(const TransferOptions& options,
                                                              const TransportFactory& factory);
  ~TransferCore() override;

  std::string address() const { return transport_->address(); }
  HandoffServer& server() { return parts_->server; }
  HandoffFetcher& fetcher() { return parts_->fetcher; }
  const TransferStats& stats() const { return stats_; }

  // One round of progress, sending and timers; false when there was nothing to do.
  bool Step();
  // See Transport::PrepareToSleep.
  std::optional<int> PrepareToSleep() { return transport_->PrepareToSleep(); }
  // Something may time out or arrive soon: sleep briefly only.
  bool busy() const;
  // Pieces are queued or under way: sleep hardly.
  bool moving() const;
  // See Transport::Streaming.
  bool streaming() const { return transport_->Streaming(); }

  // Ends every handoff, tells the peers and drains; by force after `bound` of real time. Last call
  // before destruction: sinks of handoffs still open would hear nothing.
  void Shutdown(Duration bound);

  void OnAccepted(PeerId peer) override;
  void OnHeard(PeerId peer) override;
  void OnControl(PeerId peer, std::string_view header) override;
  ReceivePlan OnData(PeerId peer, std::string_view header, std::size_t payload_bytes) override;
  void OnReceived(PeerId peer, TransferToken token, const absl::Status& status) override;
  void OnSent(PeerId peer, TransferToken token, const absl::Status& status) override;
  void OnClosed(PeerId peer, const absl::Status& why) override;
  void OnReady(Connection& connection) override;
  std::vector<HandoffId> LeasesToRenew(PeerId peer) override;

 private:
  struct Parts {
    Parts(const TransferOptions& options,
          Transport& transport,
          TransferStats& stats,
          ConnectionTable::Observer& observer)
        : connections(options, transport, stats, observer),
          server(options, connections, stats),
          fetcher(options, connections, transport, stats) {}

    ConnectionTable connections;
    HandoffServer server;
    HandoffFetcher fetcher;
  };

  explicit TransferCore(const TransferOptions& options) : options_(options) {}

  std::optional<DropReason> Dispatch(Connection& connection, const wire::Message& message);
  void Count(Connection& connection, DropReason reason);
  void DeliverLosses();
  void StepUntil(TimePoint deadline, bool (TransferCore::*done)() const);
  bool Flushed() const { return parts_->connections.controls_in_flight() == 0; }
  bool Drained() const {
    return parts_->connections.empty() && parts_->server.empty() && parts_->fetcher.empty();
  }

  const TransferOptions& options_;
  TransferStats stats_;
  std::unique_ptr<Parts> parts_;  // made once the transport is there
  // Goes first: pins in `parts_` outlive whatever touches their memory.
  std::unique_ptr<Transport> transport_;
  TimePoint next_tick_;
};

}  // namespace baton
