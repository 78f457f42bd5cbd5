#include "kvtransfer/ucx/ucx_transport.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kvtransfer/ucx/ucx_handles.h"

namespace baton::ucx {
namespace {

// Active message ids; the peer's must be the same.
constexpr unsigned kControlId = 1;  // header in the payload, so that it may be long
constexpr unsigned kDataId = 2;

// Shorter payloads are sent along at once; longer ones only after the receiver has named their place.
constexpr std::size_t kRendezvousBytes = 8 * 1024;

// Callbacks from UCX run inside its progress: they append to one of the queues below and return. Everything else,
// all calls into the handler included, happens afterwards in Progress.
//
// Not thread-safe: used only by the transfer thread.
class UcxTransport final : public Transport {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options,
                                                           TransportHandler& handler);
  ~UcxTransport() override = default;

  std::string address() const override { return address_; }
  absl::Status RegisterRegion(const MemoryRegion& region) override;
  absl::StatusOr<PeerId> Connect(const std::string& address) override;
  absl::Status Send(PeerId peer, OutgoingMessage message) override;
  void Close(PeerId peer) override;
  bool Progress() override;
  std::optional<int> PrepareToSleep() override;
  std::string CarrierOf(PeerId peer) const override;

 private:
  // A connection: open, then closing, then gone once `outstanding` operations and the close itself have called back.
  struct Endpoint {
    UcxTransport* transport;
    PeerId peer;
    ucp_ep_h handle = nullptr;
    bool closing = false;
    int outstanding = 0;
    absl::Status why;
    mutable std::string carrier;
  };
  enum class OperationKind { kSend, kReceive, kClose };
  // What UCX reads until its callback has run.
  struct Operation {
    UcxTransport* transport;
    PeerId peer;
    OperationKind kind;
    TransferToken token;
    std::string header;
    std::vector<ucp_dt_iov_t> parts;
    ucs_status_t status = UCS_INPROGRESS;
  };
  struct Arrival {
    PeerId peer;
    bool control = false;
    std::string header;
    std::string payload;         // of a short message
    void* descriptor = nullptr;  // of a long one, to be received or released
    std::size_t payload_bytes = 0;
  };

  UcxTransport(UcpContext context, TransportHandler& handler) : context_(std::move(context)), handler_(handler) {}

  static void ConnectionRequested(ucp_conn_request_h request, void* self);
  static void EndpointFailed(void* endpoint, ucp_ep_h handle, ucs_status_t status);
  static ucs_status_t MessageArrived(void* self, const void* header, std::size_t header_bytes, void* data,
                                     std::size_t data_bytes, const ucp_am_recv_param_t* param);
  static ucs_status_t ControlArrived(void* self, const void* header, std::size_t header_bytes, void* data,
                                     std::size_t data_bytes, const ucp_am_recv_param_t* param);
  static void SendDone(void* request, ucs_status_t status, void* operation);
  static void ReceiveDone(void* request, ucs_status_t status, std::size_t bytes, void* operation);

  absl::Status Listen(const TransportOptions& options);
  absl::Status RegisterMessages();
  absl::StatusOr<PeerId> AddEndpoint(ucp_ep_params_t params);
  Endpoint* FindOpen(PeerId peer);
  Operation& StartOperation(Endpoint& endpoint, OperationKind kind, TransferToken token);
  // Immediate results, which UCX reports without a callback.
  bool FinishedAtOnce(Operation& operation, ucs_status_ptr_t request);

  bool AcceptRequested();
  bool HandleArrivals();
  bool ReportDone();
  bool CloseFailed();
  void Receive(Endpoint& endpoint, Arrival& arrival);
  void ReportClosedIfDrained(PeerId peer);

  UcpContext context_;
  TransportHandler& handler_;
  std::string address_;
  std::vector<UcpMemory> regions_;
  std::uint64_t next_peer_ = 1;
  absl::flat_hash_map<PeerId, std::unique_ptr<Endpoint>> endpoints_;
  absl::flat_hash_map<ucp_ep_h, PeerId> by_handle_;  // not closing
  absl::flat_hash_map<Operation*, std::unique_ptr<Operation>> operations_;
  std::vector<ucp_conn_request_h> requested_;
  std::vector<std::pair<PeerId, ucs_status_t>> failed_;
  std::vector<Operation*> done_;
  std::deque<Arrival> arrivals_;
  int event_fd_ = -1;  // the worker's
  // Last, so that they go first: destroying them may still call back into the queues above.
  UcpWorker worker_;
  UcpListener listener_;
};

absl::StatusOr<std::unique_ptr<Transport>> UcxTransport::Create(const TransportOptions& options,
                                                                TransportHandler& handler) {
  ASSIGN_OR_RETURN(UcpContext context, MakeContext());
  std::unique_ptr<UcxTransport> transport(new UcxTransport(std::move(context), handler));
  ASSIGN_OR_RETURN(transport->worker_, MakeWorker(transport->context_.get()));
  RETURN_IF_ERROR(ToStatus(ucp_worker_get_efd(transport->worker_.get(), &transport->event_fd_),
                           "get the UCX worker's descriptor"));
  RETURN_IF_ERROR(transport->RegisterMessages());
  RETURN_IF_ERROR(transport->Listen(options));
  return transport;
}

absl::Status UcxTransport::RegisterMessages() {
  for (const auto& [id, callback] : {std::pair{kControlId, &ControlArrived}, std::pair{kDataId, &MessageArrived}}) {
    const ucp_am_handler_param_t params{
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = id,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = callback,
        .arg = this,
    };
    RETURN_IF_ERROR(ToStatus(ucp_worker_set_am_recv_handler(worker_.get(), &params), "register UCX messages"));
  }
  return absl::OkStatus();
}

absl::Status UcxTransport::Listen(const TransportOptions& options) {
  ASSIGN_OR_RETURN(const SocketAddress wanted,
                   SocketAddress::Make(options.listen_host, options.port, /*resolve=*/true));
  const ucp_listener_params_t params{
      .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
      .sockaddr = wanted.ForUcx(),
      .conn_handler = {.cb = &ConnectionRequested, .arg = this},
  };
  ucp_listener_h listener = nullptr;
  RETURN_IF_ERROR(ToStatus(ucp_listener_create(worker_.get(), &params, &listener),
                           absl::StrCat("listen at ", JoinHostPort(options.listen_host, options.port))));
  listener_ = UcpListener(listener);

  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  RETURN_IF_ERROR(ToStatus(ucp_listener_query(listener, &attributes), "query the UCX listener"));
  const std::string host = options.advertise_host.empty() ? wanted.host() : options.advertise_host;
  address_ = JoinHostPort(host, SocketAddress(attributes.sockaddr).port());
  return absl::OkStatus();
}

absl::Status UcxTransport::RegisterRegion(const MemoryRegion& region) {
  if (region.kind != MemoryKind::kHost) {
    // A UCX without CUDA takes a device pointer for host memory and crashes in memcpy.
    return absl::FailedPreconditionError("this UCX moves host memory only");
  }
  ASSIGN_OR_RETURN(UcpMemory memory, UcpMemory::Map(context_.get(), region.base, region.size_bytes));
  regions_.push_back(std::move(memory));
  return absl::OkStatus();
}

absl::StatusOr<PeerId> UcxTransport::Connect(const std::string& address) {
  ASSIGN_OR_RETURN(const SocketAddress target, SocketAddress::Parse(address));
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = target.ForUcx();
  return AddEndpoint(params);
}

absl::StatusOr<PeerId> UcxTransport::AddEndpoint(ucp_ep_params_t params) {
  auto endpoint = std::make_unique<Endpoint>();
  endpoint->transport = this;
  endpoint->peer = PeerId(next_peer_++);
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = &EndpointFailed, .arg = endpoint.get()};
  RETURN_IF_ERROR(ToStatus(ucp_ep_create(worker_.get(), &params, &endpoint->handle), "make a UCX endpoint"));
  const PeerId peer = endpoint->peer;
  by_handle_[endpoint->handle] = peer;
  endpoints_[peer] = std::move(endpoint);
  return peer;
}

absl::Status UcxTransport::Send(PeerId peer, OutgoingMessage message) {
  Endpoint* endpoint = FindOpen(peer);
  if (endpoint == nullptr) {
    return absl::UnavailableError("connection is closed");
  }
  Operation& operation = StartOperation(*endpoint, OperationKind::kSend, message.token);
  operation.header = std::move(message.header);
  const bool control = message.payload.empty();
  std::size_t payload_bytes = 0;
  for (const std::span<const std::byte> part : message.payload) {
    payload_bytes += part.size();
    operation.parts.push_back({.buffer = const_cast<std::byte*>(part.data()), .length = part.size()});
  }
  if (control) {
    operation.parts.push_back({.buffer = operation.header.data(), .length = operation.header.size()});
  }
  const unsigned protocol =
      !control && payload_bytes >= kRendezvousBytes ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE |
                        UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  // The reply flag is what tells the receiver which endpoint this came from.
  params.flags = UCP_AM_SEND_FLAG_REPLY | protocol;
  params.cb.send = &SendDone;
  params.datatype = UCP_DATATYPE_IOV;
  params.user_data = &operation;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  const ucs_status_ptr_t request = ucp_am_send_nbx(
      endpoint->handle, control ? kControlId : kDataId, control ? nullptr : operation.header.data(),
      control ? 0 : operation.header.size(), operation.parts.data(), operation.parts.size(), &params);
  if (UCS_PTR_IS_ERR(request)) {
    --endpoint->outstanding;
    operations_.erase(&operation);
    return ToStatus(UCS_PTR_STATUS(request), "send to the peer");
  }
  FinishedAtOnce(operation, request);
  return absl::OkStatus();
}

void UcxTransport::Close(PeerId peer) {
  Endpoint* endpoint = FindOpen(peer);
  if (endpoint == nullptr) {
    return;
  }
  std::erase_if(arrivals_, [&](const Arrival& arrival) {
    if (arrival.peer == peer && arrival.descriptor != nullptr) {
      ucp_am_data_release(worker_.get(), arrival.descriptor);
    }
    return arrival.peer == peer;
  });
  endpoint->closing = true;
  if (endpoint->why.ok()) {
    endpoint->why = absl::CancelledError("closed here");
  }
  by_handle_.erase(endpoint->handle);
  Operation& operation = StartOperation(*endpoint, OperationKind::kClose, TransferToken());
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  params.cb.send = &SendDone;
  params.user_data = &operation;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint->handle, &params);
  if (UCS_PTR_IS_ERR(request)) {
    LogEvent(LogLevel::kWarn, "ucx.close_failed",
             {{"why", ToStatus(UCS_PTR_STATUS(request), "close a UCX endpoint")}});
    operation.status = UCS_PTR_STATUS(request);
    done_.push_back(&operation);
  } else {
    FinishedAtOnce(operation, request);
  }
}

bool UcxTransport::Progress() {
  bool worked = ucp_worker_progress(worker_.get()) != 0;
  worked = AcceptRequested() || worked;
  worked = HandleArrivals() || worked;
  worked = CloseFailed() || worked;
  worked = ReportDone() || worked;
  return worked;
}

std::optional<int> UcxTransport::PrepareToSleep() {
  if (!requested_.empty() || !arrivals_.empty() || !failed_.empty() || !done_.empty()) {
    return std::nullopt;
  }
  return ucp_worker_arm(worker_.get()) == UCS_OK ? std::optional(event_fd_) : std::nullopt;
}

std::string UcxTransport::CarrierOf(PeerId peer) const {
  const auto found = endpoints_.find(peer);
  if (found == endpoints_.end() || found->second->closing) {
    return "unknown";
  }
  const Endpoint& endpoint = *found->second;
  if (endpoint.carrier.empty()) {
    endpoint.carrier = ucx::CarrierOf(endpoint.handle);
  }
  return endpoint.carrier;
}

void UcxTransport::ConnectionRequested(ucp_conn_request_h request, void* self) {
  static_cast<UcxTransport*>(self)->requested_.push_back(request);
}

void UcxTransport::EndpointFailed(void* endpoint, ucp_ep_h, ucs_status_t status) {
  const auto* failed = static_cast<Endpoint*>(endpoint);
  failed->transport->failed_.emplace_back(failed->peer, status);
}

ucs_status_t UcxTransport::ControlArrived(void* self, const void*, std::size_t, void* data, std::size_t data_bytes,
                                          const ucp_am_recv_param_t* param) {
  auto* transport = static_cast<UcxTransport*>(self);
  const bool has_sender = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
  const auto sender = transport->by_handle_.find(has_sender ? param->reply_ep : nullptr);
  if (sender == transport->by_handle_.end() || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 ||
      data_bytes > kMaxControlBytes) {
    return UCS_OK;  // dropped
  }
  transport->arrivals_.push_back({.peer = sender->second,
                                  .control = true,
                                  .header = std::string(static_cast<const char*>(data), data_bytes)});
  return UCS_OK;
}

ucs_status_t UcxTransport::MessageArrived(void* self, const void* header, std::size_t header_bytes, void* data,
                                          std::size_t data_bytes, const ucp_am_recv_param_t* param) {
  auto* transport = static_cast<UcxTransport*>(self);
  const bool has_sender = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
  const auto sender = transport->by_handle_.find(has_sender ? param->reply_ep : nullptr);
  if (sender == transport->by_handle_.end() || header_bytes > kMaxDataHeaderBytes) {
    return UCS_OK;  // dropped
  }
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  transport->arrivals_.push_back(
      {.peer = sender->second,
       .control = false,
       .header = std::string(static_cast<const char*>(header), header_bytes),
       .payload = rendezvous ? std::string() : std::string(static_cast<const char*>(data), data_bytes),
       .descriptor = rendezvous ? data : nullptr,
       .payload_bytes = data_bytes});
  return rendezvous ? UCS_INPROGRESS : UCS_OK;
}

void UcxTransport::SendDone(void* request, ucs_status_t status, void* operation) {
  auto* done = static_cast<Operation*>(operation);
  done->status = status;
  done->transport->done_.push_back(done);
  ucp_request_free(request);
}

void UcxTransport::ReceiveDone(void* request, ucs_status_t status, std::size_t, void* operation) {
  SendDone(request, status, operation);
}

UcxTransport::Endpoint* UcxTransport::FindOpen(PeerId peer) {
  const auto found = endpoints_.find(peer);
  return found == endpoints_.end() || found->second->closing ? nullptr : found->second.get();
}

UcxTransport::Operation& UcxTransport::StartOperation(Endpoint& endpoint, OperationKind kind, TransferToken token) {
  auto operation = std::make_unique<Operation>();
  operation->transport = this;
  operation->peer = endpoint.peer;
  operation->kind = kind;
  operation->token = token;
  ++endpoint.outstanding;
  Operation& started = *operation;
  operations_[&started] = std::move(operation);
  return started;
}

bool UcxTransport::FinishedAtOnce(Operation& operation, ucs_status_ptr_t request) {
  if (request != nullptr) {
    return false;
  }
  operation.status = UCS_OK;
  done_.push_back(&operation);
  return true;
}

bool UcxTransport::AcceptRequested() {
  const std::vector<ucp_conn_request_h> requested = std::exchange(requested_, {});
  for (const ucp_conn_request_h request : requested) {
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
    params.conn_request = request;
    const absl::StatusOr<PeerId> peer = AddEndpoint(params);
    if (peer.ok()) {
      handler_.OnAccepted(*peer);
    } else {
      LogEvent(LogLevel::kWarn, "ucx.accept_failed", {{"why", peer.status()}});
    }
  }
  return !requested.empty();
}

bool UcxTransport::HandleArrivals() {
  bool any = false;
  while (!arrivals_.empty()) {
    any = true;
    Arrival arrival = std::move(arrivals_.front());
    arrivals_.pop_front();
    if (arrival.control) {
      handler_.OnControl(arrival.peer, arrival.header);
    } else if (Endpoint* endpoint = FindOpen(arrival.peer)) {
      Receive(*endpoint, arrival);
    }
  }
  return any;
}

void UcxTransport::Receive(Endpoint& endpoint, Arrival& arrival) {
  const ReceivePlan plan = handler_.OnData(arrival.peer, arrival.header, arrival.payload_bytes);
  if (!plan.accept || endpoint.closing) {
    if (arrival.descriptor != nullptr) {
      ucp_am_data_release(worker_.get(), arrival.descriptor);
    }
    if (plan.accept) {
      handler_.OnReceived(arrival.peer, plan.token, endpoint.why);
    }
    return;
  }
  if (arrival.descriptor == nullptr) {
    const char* from = arrival.payload.data();
    for (const std::span<std::byte> destination : plan.destinations) {
      std::memcpy(destination.data(), from, destination.size());
      from += destination.size();
    }
    handler_.OnReceived(arrival.peer, plan.token, absl::OkStatus());
    return;
  }
  Operation& operation = StartOperation(endpoint, OperationKind::kReceive, plan.token);
  for (const std::span<std::byte> destination : plan.destinations) {
    operation.parts.push_back({.buffer = destination.data(), .length = destination.size()});
  }
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.cb.recv_am = &ReceiveDone;
  params.datatype = UCP_DATATYPE_IOV;
  params.user_data = &operation;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  const ucs_status_ptr_t request = ucp_am_recv_data_nbx(worker_.get(), arrival.descriptor, operation.parts.data(),
                                                        operation.parts.size(), &params);
  if (UCS_PTR_IS_ERR(request)) {
    operation.status = UCS_PTR_STATUS(request);
    done_.push_back(&operation);
  } else {
    FinishedAtOnce(operation, request);
  }
}

bool UcxTransport::CloseFailed() {
  const auto failed = std::exchange(failed_, {});
  for (const auto& [peer, status] : failed) {
    if (Endpoint* endpoint = FindOpen(peer)) {
      endpoint->why = absl::UnavailableError(absl::StrCat("connection lost: ", ucs_status_string(status)));
      Close(peer);
    }
  }
  return !failed.empty();
}

bool UcxTransport::ReportDone() {
  const std::vector<Operation*> done = std::exchange(done_, {});
  for (Operation* finished : done) {
    const auto found = operations_.find(finished);
    const std::unique_ptr<Operation> operation = std::move(found->second);
    operations_.erase(found);
    --endpoints_.at(operation->peer)->outstanding;
    switch (operation->kind) {
      case OperationKind::kSend:
        handler_.OnSent(operation->peer, operation->token, ToStatus(operation->status, "send to the peer"));
        break;
      case OperationKind::kReceive:
        handler_.OnReceived(operation->peer, operation->token,
                            ToStatus(operation->status, "receive from the peer"));
        break;
      case OperationKind::kClose:
        break;
    }
    ReportClosedIfDrained(operation->peer);
  }
  return !done.empty();
}

void UcxTransport::ReportClosedIfDrained(PeerId peer) {
  const auto found = endpoints_.find(peer);
  if (!found->second->closing || found->second->outstanding > 0) {
    return;
  }
  const absl::Status why = found->second->why;
  endpoints_.erase(found);
  handler_.OnClosed(peer, why);
}

}  // namespace

TransportFactory MakeTransport(TransportOptions options) {
  return [options = std::move(options)](TransportHandler& handler) {
    return UcxTransport::Create(options, handler);
  };
}

}  // namespace baton::ucx
