#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "kvtransfer/scatter_writer.h"
#include "kvtransfer/transport.h"
#include "kvtransfer/ucx/ucx_handles.h"

namespace baton::ucx {

// Active message ids; the peer's must be the same.
inline constexpr unsigned kControlId = 1;  // header in the payload, so that it may be long
inline constexpr unsigned kDataId = 2;
// A payload in fragments, see ucx_fragments.h.
inline constexpr unsigned kAnnounceId = 3;
inline constexpr unsigned kAnswerId = 4;
inline constexpr unsigned kFragmentId = 5;

class UcxEvents;

enum class OperationKind { kSend, kReceive, kFragment, kGet, kClose };

// One call under way inside UCX, and what it reads until its callback has run.
struct Operation {
  UcxEvents* events;
  PeerId peer;
  OperationKind kind;
  TransferToken token;
  std::string header;
  std::vector<ucp_dt_iov_t> parts;
  ucs_status_t status = UCS_INPROGRESS;
  // Of a fragment: the send it belongs to.
  Operation* message = nullptr;
  // Of a send in fragments.
  int fragments_posted = 0;  // and not called back
  bool all_posted = false;   // or given up
  bool send_checksum = false;
};

// A payload that is arriving in fragments: where it goes, and how much of it has come.
struct Incoming {
  Operation* operation;  // the receive
  std::size_t payload_bytes = 0;
  ScatterWriter writer;
};

// A message that has arrived, not yet shown to the handler.
struct Arrival {
  enum class Kind { kControl, kData, kAnnounce, kAnswer };
  PeerId peer;
  Kind kind = Kind::kControl;
  std::string header;
  std::string payload;         // of a short message
  void* descriptor = nullptr;  // of a long one, to be received or released
  std::size_t payload_bytes = 0;
  std::uint64_t sequence = 0;              // of an announcement and its answer
  std::shared_ptr<CopiedChecksum> copied;  // of its plan, while it waits to be placed
  bool accepted = false;                   // of an answer
};

// What UCX's callbacks have to say. They run inside UCX's progress and inside the destruction of a
// worker, append to one of the queues here and return; the transport takes it from there.
//
// Not thread-safe: used only by the transfer thread. Stays where it is while UCX knows it.
class UcxEvents {
 public:
  // Argument of an endpoint's error callback; lives as long as the endpoint.
  struct EndpointTag {
    UcxEvents* events;
    PeerId peer;
  };
  struct Failure {
    PeerId peer;
    ucs_status_t status;
  };

  UcxEvents() = default;
  UcxEvents(const UcxEvents&) = delete;
  UcxEvents& operator=(const UcxEvents&) = delete;

  absl::Status RegisterMessages(ucp_worker_h worker);

  // Messages of endpoints that are not bound are dropped.
  void Bind(ucp_ep_h endpoint, PeerId peer) { by_endpoint_[endpoint] = peer; }
  void Unbind(ucp_ep_h endpoint) { by_endpoint_.erase(endpoint); }

  // Owned here until TakeDone or Abandon.
  Operation& Start(PeerId peer, OperationKind kind, TransferToken token);
  // For results that come without a callback.
  void Finish(Operation& operation, ucs_status_t status);
  void Abandon(Operation& operation) { operations_.erase(&operation); }

  // Fragments of message `sequence` of this peer are copied to where `incoming` says as they come;
  // its operation is finished with the last. Others are dropped. False when that message is
  // expected already: its sender has used one name twice.
  bool Expect(PeerId peer, std::uint64_t sequence, Incoming incoming);
  // Copies nothing more for this peer; receives that were not complete are finished as cancelled.
  void CancelIncoming(PeerId peer);

  std::vector<ucp_conn_request_h> TakeRequested() { return std::exchange(requested_, {}); }
  std::vector<Failure> TakeFailed() { return std::exchange(failed_, {}); }
  std::vector<std::unique_ptr<Operation>> TakeDone();
  // Peers of which fragments have come since.
  absl::flat_hash_set<PeerId> TakeHeard() { return std::exchange(heard_, {}); }
  std::deque<Arrival>& arrivals() { return arrivals_; }
  // Messages that arrive in fragments at this moment.
  std::size_t incoming() const { return incoming_.size(); }
  bool empty() const {
    return requested_.empty() && failed_.empty() && done_.empty() && arrivals_.empty();
  }

  // What UCX calls.
  static void ConnectionRequested(ucp_conn_request_h request, void* events);
  static void EndpointFailed(void* tag, ucp_ep_h endpoint, ucs_status_t status);
  static void OperationDone(void* request, ucs_status_t status, void* operation);
  static void ReceiveDone(void* request, ucs_status_t status, std::size_t bytes, void* operation);

 private:
  static ucs_status_t ControlArrived(void* events,
                                     const void* header,
                                     std::size_t header_bytes,
                                     void* data,
                                     std::size_t data_bytes,
                                     const ucp_am_recv_param_t* param);
  static ucs_status_t DataArrived(void* events,
                                  const void* header,
                                  std::size_t header_bytes,
                                  void* data,
                                  std::size_t data_bytes,
                                  const ucp_am_recv_param_t* param);
  static ucs_status_t AnnounceArrived(void* events,
                                      const void* header,
                                      std::size_t header_bytes,
                                      void* data,
                                      std::size_t data_bytes,
                                      const ucp_am_recv_param_t* param);
  static ucs_status_t AnswerArrived(void* events,
                                    const void* header,
                                    std::size_t header_bytes,
                                    void* data,
                                    std::size_t data_bytes,
                                    const ucp_am_recv_param_t* param);
  static ucs_status_t FragmentArrived(void* events,
                                      const void* header,
                                      std::size_t header_bytes,
                                      void* data,
                                      std::size_t data_bytes,
                                      const ucp_am_recv_param_t* param);
  // nullptr when the sender is unknown.
  const PeerId* SenderOf(const ucp_am_recv_param_t& param) const;

  absl::flat_hash_map<ucp_ep_h, PeerId> by_endpoint_;
  absl::flat_hash_map<Operation*, std::unique_ptr<Operation>> operations_;
  std::vector<ucp_conn_request_h> requested_;
  std::vector<Failure> failed_;
  std::vector<Operation*> done_;
  std::deque<Arrival> arrivals_;
  absl::flat_hash_set<PeerId> heard_;
  absl::flat_hash_map<std::pair<PeerId, std::uint64_t>, Incoming> incoming_;
};

}  // namespace baton::ucx
