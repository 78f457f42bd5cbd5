#include "kvtransfer/ucx/ucx_transport.h"

#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/byte_io.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kvtransfer/ucx/ucx_endpoint.h"
#include "kvtransfer/ucx/ucx_reader.h"
#include "kvtransfer/ucx/ucx_receiver.h"
#include "kvtransfer/ucx/ucx_sender.h"

namespace baton::ucx {
namespace {

constexpr std::string_view kRdmaScheme = "rdma:";
// Between two fragments of a stream.
constexpr Duration kStreamPause = std::chrono::milliseconds(1);

// Calls into UCX and drains what its callbacks have left in UcxEvents; all calls into the handler
// happen in Progress, outside of UCX's own.
//
// Not thread-safe: used only by the transfer thread.
class UcxTransport final : public Transport {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options,
                                                           TransportHandler& handler);
  ~UcxTransport() override;

  std::string address() const override { return address_; }
  absl::Status RegisterRegion(const MemoryRegion& region) override;
  absl::StatusOr<PeerId> Connect(const std::string& address) override;
  absl::Status Send(PeerId peer, OutgoingMessage message) override {
    Endpoint* endpoint = FindOpen(peer);
    return endpoint != nullptr
               ? sender_.Send(*endpoint, std::move(message), CarrierOf(peer) == "tcp")
               : absl::UnavailableError("connection is closed");
  }
  bool SendsChecksums(PeerId peer, std::size_t payload_bytes) const override {
    return payload_bytes >= kFragmentedBytes && CarrierOf(peer) == "tcp";
  }
  void Place(PeerId peer,
             TransferToken token,
             std::vector<std::span<std::byte>> destinations) override {
    if (Endpoint* endpoint = FindOpen(peer)) {
      receiver_.Place(*endpoint, token, destinations);
    }
  }
  void Close(PeerId peer) override;
  bool Progress() override;
  std::optional<int> PrepareToSleep() override;
  // The kernel holds what comes meanwhile. The last message of a transfer is waited for, and so is
  // what comes slowly.
  bool Streaming() const override {
    return events_.incoming() > 1 && Clock::System().Now() - last_part_ < kStreamPause;
  }
  std::string CarrierOf(PeerId peer) const override;
  std::vector<PoolReader*> readers() override {
    return rdma_ ? std::vector<PoolReader*>{&reader_} : std::vector<PoolReader*>();
  }

 private:
  UcxTransport(UcpContext context, bool rdma, TransportHandler& handler)
      : context_(std::move(context)), rdma_(rdma), handler_(handler) {}

  absl::Status Listen(const TransportOptions& options);
  absl::StatusOr<PeerId> AddEndpoint(ucp_ep_params_t params);
  Endpoint* FindOpen(PeerId peer);

  bool AcceptRequested();
  bool HandleArrivals();
  bool CloseFailed();
  bool ReportDone();
  void ReportClosedIfDrained(PeerId peer);

  UcpContext context_;
  const bool rdma_;
  TransportHandler& handler_;
  std::string address_;
  std::vector<UcpMemory> regions_;
  absl::flat_hash_map<PeerId, std::unique_ptr<Endpoint>> endpoints_;
  UcxEvents events_;
  UcxSender sender_{events_};
  UcxReceiver receiver_{events_, sender_, handler_};
  UcxReader reader_{events_, handler_, [this](PeerId peer) { return FindOpen(peer); }};
  TimePoint last_part_;  // when a fragment came
  int event_fd_ = -1;    // the worker's
  // Last, so that they go first: destroying them still calls back into `events_` and reads what
  // operations hold.
  UcpWorker worker_;
  UcpListener listener_;
};

absl::StatusOr<std::unique_ptr<Transport>> UcxTransport::Create(const TransportOptions& options,
                                                                TransportHandler& handler) {
  ASSIGN_OR_RETURN(UcpContext context, MakeContext(options.lanes));
  std::unique_ptr<UcxTransport> transport(
      new UcxTransport(std::move(context), options.lanes == Lanes::kRdma, handler));
  ASSIGN_OR_RETURN(transport->worker_, MakeWorker(transport->context_.get()));
  transport->receiver_.SetWorker(transport->worker_.get());
  RETURN_IF_ERROR(ToStatus(ucp_worker_get_efd(transport->worker_.get(), &transport->event_fd_),
                           "get the UCX worker's descriptor"));
  RETURN_IF_ERROR(transport->events_.RegisterMessages(transport->worker_.get()));
  RETURN_IF_ERROR(transport->Listen(options));
  return transport;
}

UcxTransport::~UcxTransport() {
  for (auto& [peer, endpoint] : endpoints_) {
    if (endpoint->outstanding > 0) {
      // A get may still use the key, until the worker goes; and after that no key can be destroyed.
      static_cast<void>(endpoint->pool_key.release());
    }
    endpoint->pool_key.reset();
  }
}

absl::Status UcxTransport::Listen(const TransportOptions& options) {
  ASSIGN_OR_RETURN(const SocketAddress wanted,
                   SocketAddress::Make(options.listen_host, options.port, /*resolve=*/true));
  const ucp_listener_params_t params{
      .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
      .sockaddr = wanted.ForUcx(),
      .conn_handler = {.cb = &UcxEvents::ConnectionRequested, .arg = &events_},
  };
  ucp_listener_h listener = nullptr;
  RETURN_IF_ERROR(
      ToStatus(ucp_listener_create(worker_.get(), &params, &listener),
               absl::StrCat("listen at ", JoinHostPort(options.listen_host, options.port))));
  listener_ = UcpListener(listener);

  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  RETURN_IF_ERROR(ToStatus(ucp_listener_query(listener, &attributes), "query the UCX listener"));
  const int port = SocketAddress(attributes.sockaddr).port();
  // Peers want a number: looking up a name would hold up their transfer thread.
  ASSIGN_OR_RETURN(const SocketAddress advertised,
                   SocketAddress::Make(options.advertise_host.empty() ? options.listen_host
                                                                      : options.advertise_host,
                                       port, /*resolve=*/true));
  address_ =
      absl::StrCat(rdma_ ? std::string(kRdmaScheme) : "", JoinHostPort(advertised.host(), port));
  return absl::OkStatus();
}

absl::Status UcxTransport::RegisterRegion(const MemoryRegion& region) {
  if (region.kind != MemoryKind::kHost) {
    // A UCX without CUDA takes a device pointer for host memory and crashes in memcpy.
    return absl::FailedPreconditionError("this UCX moves host memory only");
  }
  ASSIGN_OR_RETURN(UcpMemory memory,
                   UcpMemory::Map(context_.get(), region.base, region.size_bytes));
  if (rdma_) {
    ASSIGN_OR_RETURN(const std::string key, memory.PackKey());
    ByteWriter door;
    door.Put(reinterpret_cast<std::uint64_t>(region.base));
    door.Put(static_cast<std::uint64_t>(region.size_bytes));
    door.PutBytes(key);
    if (door.bytes().size() > kMaxDoorBytes) {
      return absl::InternalError("the key of the block pool is too long to be told");
    }
    reader_.SetDoor(std::move(door).Take());
  }
  regions_.push_back(std::move(memory));
  return absl::OkStatus();
}

absl::StatusOr<PeerId> UcxTransport::Connect(const std::string& address) {
  if (address.starts_with(kRdmaScheme) != rdma_) {
    return absl::InvalidArgumentError(
        absl::StrCat("address \"", address, "\" is of another transport"));
  }
  ASSIGN_OR_RETURN(const SocketAddress target,
                   SocketAddress::Parse(rdma_ ? address.substr(kRdmaScheme.size()) : address));
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = target.ForUcx();
  return AddEndpoint(params);
}

absl::StatusOr<PeerId> UcxTransport::AddEndpoint(ucp_ep_params_t params) {
  auto endpoint = std::make_unique<Endpoint>();
  const PeerId peer = MakePeerId();
  endpoint->tag = {.events = &events_, .peer = peer};
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = &UcxEvents::EndpointFailed, .arg = &endpoint->tag};
  RETURN_IF_ERROR(
      ToStatus(ucp_ep_create(worker_.get(), &params, &endpoint->handle), "make a UCX endpoint"));
  events_.Bind(endpoint->handle, peer);
  endpoints_[peer] = std::move(endpoint);
  return peer;
}

void UcxTransport::Close(PeerId peer) {
  Endpoint* endpoint = FindOpen(peer);
  if (endpoint == nullptr) {
    return;
  }
  std::erase_if(events_.arrivals(), [&](const Arrival& arrival) {
    if (arrival.peer == peer) {
      receiver_.Release(arrival);
    }
    return arrival.peer == peer;
  });
  receiver_.Abandon(*endpoint);
  sender_.Abandon(*endpoint);
  endpoint->closing = true;
  if (endpoint->why.ok()) {
    endpoint->why = absl::CancelledError("closed here");
  }
  events_.Unbind(endpoint->handle);
  Operation& operation = StartOperation(events_, *endpoint, OperationKind::kClose, TransferToken());
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  params.cb.send = &UcxEvents::OperationDone;
  params.user_data = &operation;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint->handle, &params);
  if (UCS_PTR_IS_ERR(request)) {
    LogEvent(LogLevel::kWarn, "ucx.close_failed",
             {{"why", ToStatus(UCS_PTR_STATUS(request), "close a UCX endpoint")}});
  }
  Follow(events_, operation, request);
}

bool UcxTransport::Progress() {
  bool worked = ucp_worker_progress(worker_.get()) != 0;
  const absl::flat_hash_set<PeerId> heard = events_.TakeHeard();
  if (!heard.empty()) {
    last_part_ = Clock::System().Now();
  }
  for (const PeerId peer : heard) {
    handler_.OnHeard(peer);
  }
  worked = AcceptRequested() || worked;
  worked = HandleArrivals() || worked;
  worked = CloseFailed() || worked;
  worked = ReportDone() || worked;
  return worked;
}

std::optional<int> UcxTransport::PrepareToSleep() {
  if (!events_.empty()) {
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
    const std::string carrier = ucx::CarrierOf(endpoint.handle);
    if (carrier == "unknown") {
      return carrier;  // not connected yet
    }
    endpoint.carrier = carrier;
  }
  return endpoint.carrier;
}

Endpoint* UcxTransport::FindOpen(PeerId peer) {
  const auto found = endpoints_.find(peer);
  return found == endpoints_.end() || found->second->closing ? nullptr : found->second.get();
}

bool UcxTransport::AcceptRequested() {
  const std::vector<ucp_conn_request_h> requested = events_.TakeRequested();
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
  // One at a time: the handler may close a connection, and with it go the arrivals that wait.
  while (!events_.arrivals().empty()) {
    any = true;
    Arrival arrival = std::move(events_.arrivals().front());
    events_.arrivals().pop_front();
    Endpoint* endpoint = FindOpen(arrival.peer);
    if (arrival.kind == Arrival::Kind::kControl) {
      handler_.OnControl(arrival.peer, arrival.header);
    } else if (endpoint != nullptr && arrival.kind == Arrival::Kind::kAnswer) {
      sender_.StartFragments(*endpoint, arrival);
    } else if (endpoint != nullptr) {
      receiver_.Receive(*endpoint, std::move(arrival));
    }
  }
  return any;
}

bool UcxTransport::CloseFailed() {
  const std::vector<UcxEvents::Failure> failed = events_.TakeFailed();
  for (const auto& [peer, status] : failed) {
    if (Endpoint* endpoint = FindOpen(peer)) {
      endpoint->why =
          absl::UnavailableError(absl::StrCat("connection lost: ", ucs_status_string(status)));
      Close(peer);
    }
  }
  return !failed.empty();
}

bool UcxTransport::ReportDone() {
  const std::vector<std::unique_ptr<Operation>> done = events_.TakeDone();
  for (const std::unique_ptr<Operation>& operation : done) {
    --endpoints_.at(operation->peer)->outstanding;
    switch (operation->kind) {
      case OperationKind::kSend:
        handler_.OnSent(operation->peer, operation->token,
                        ToStatus(operation->status, "send to the peer"));
        break;
      case OperationKind::kReceive:
        handler_.OnReceived(operation->peer, operation->token,
                            ToStatus(operation->status, "receive from the peer"));
        break;
      case OperationKind::kFragment:
        sender_.FragmentSent(*endpoints_.at(operation->peer), *operation);
        break;
      case OperationKind::kGet:
        reader_.GetDone(operation->peer, operation->token,
                        ToStatus(operation->status, "read from the peer"));
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
