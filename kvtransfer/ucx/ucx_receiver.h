#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kvtransfer/ucx/ucx_endpoint.h"
#include "kvtransfer/ucx/ucx_sender.h"

namespace baton::ucx {

// Asks the handler where arriving payloads go and has them put there.
//
// Not thread-safe: used only by the transfer thread.
class UcxReceiver {
 public:
  // All outlive the receiver.
  UcxReceiver(UcxEvents& events, UcxSender& sender, TransportHandler& handler)
      : events_(events), sender_(sender), handler_(handler) {}

  // The worker whose messages they are; before the first.
  void SetWorker(ucp_worker_h worker) { worker_ = worker; }

  void Receive(Endpoint& endpoint, Arrival arrival);
  // As Transport::Place.
  void Place(Endpoint& endpoint,
             TransferToken token,
             std::span<const std::span<std::byte>> destinations);
  // A long message that is not wanted any more: its sender is told that it is done.
  void Release(const Arrival& arrival);
  // The endpoint is being closed: finishes what waits.
  void Abandon(Endpoint& endpoint);

 private:
  void Fill(Endpoint& endpoint,
            const Arrival& arrival,
            TransferToken token,
            std::span<const std::span<std::byte>> destinations,
            std::shared_ptr<CopiedChecksum> copied);

  UcxEvents& events_;
  UcxSender& sender_;
  TransportHandler& handler_;
  ucp_worker_h worker_ = nullptr;
};

}  // namespace baton::ucx
