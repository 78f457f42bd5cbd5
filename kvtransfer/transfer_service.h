#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvtransfer/transfer_types.h"
#include "kvtransfer/transport.h"

namespace baton {

// Hands KV blocks from one process to another; one per process, for both sides of a handoff.
//
// The prefill side offers blocks and marks layers of them ready; the decode side fetches them and
// owns what happens: it names the blocks, checks every piece before naming memory for it (handoff,
// epoch, peer, blocks, layers, length), verifies checksums, acknowledges. Offer and fetch may come
// in either order. Pins are dropped only when the transport has reported the end of everything that
// touched the memory, or the connection is closed and drained.
//
// A piece that is missing or damaged when the prefill side says it has sent everything is fetched
// once more; after a second time the fetch fails, with DATA_LOSS when checksums were the reason. A
// fetch fails with UNAVAILABLE when the peer is gone, silent for `times.dead` or another instance;
// FAILED_PRECONDITION when layouts or versions differ; DEADLINE_EXCEEDED at its deadline; CANCELLED
// by CancelFetch; otherwise with what the prefill side's Withdraw said.
//
// Thread-safe: every method posts to the transfer thread, which owns the transport and all state.
class TransferService {
 public:
  // Starts the transfer thread and makes the transport on it.
  static absl::StatusOr<std::unique_ptr<TransferService>> Start(TransferOptions options,
                                                                TransportFactory transport);

  // Stops with a bound of one second.
  ~TransferService();
  TransferService(const TransferService&) = delete;
  TransferService& operator=(const TransferService&) = delete;

  // Where peers connect to, numeric host:port.
  const std::string& address() const;

  // Prefill side. INVALID_ARGUMENT for blocks outside the pool, RESOURCE_EXHAUSTED when too much
  // waits, UNAVAILABLE after Stop: then the pin is dropped at once and the sink not called. An
  // offer whose id is open ends at once with kFailed; one whose id has ended here with kCancelled,
  // which is how a cancellation that overtook its offer takes effect.
  absl::Status Offer(OfferRequest request);
  // From the engine thread: 0.1 us, or one system call when the transfer thread sleeps. Ranges may
  // come in any order and may overlap; an unknown or ended handoff is ignored.
  void MarkReady(HandoffId id, ReadyRange range);
  // Everything was marked ready: kComputing -> kServing.
  void FinishComputing(HandoffId id);
  // Ends an offer: kCancelled when `why` is CANCELLED, else kFailed. The decode side is told `why`.
  void Withdraw(HandoffId id, absl::Status why);

  // Decode side. Errors as for Offer.
  absl::Status Fetch(FetchRequest request);
  // OnFailed(CANCELLED) unless the fetch has ended; the prefill side is told at once.
  void CancelFetch(HandoffId id);

  TransferStats stats() const;

  // Ends every handoff, tells peers, and returns when all pins are dropped, by force after `bound`.
  // Every sink has had its terminal event. Must not be called from a sink.
  void Stop(Duration bound);

 private:
  class Impl;
  explicit TransferService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton
