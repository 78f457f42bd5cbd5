#include "kvtransfer/ucx/ucx_transport.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/byte_io.h"
#include "common/crc32c.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kvtransfer/ucx/ucx_events.h"
#include "kvtransfer/ucx/ucx_fragments.h"
#include "kvtransfer/ucx/ucx_handles.h"

namespace baton::ucx {
namespace {

constexpr std::string_view kRdmaScheme = "rdma:";
constexpr std::size_t kKeyPaddingBytes = 4096;
constexpr int kFragmentsPosted = 2;  // to one peer; keeps its socket full

// Calls into UCX and drains what its callbacks have left in UcxEvents; all calls into the handler
// happen in Progress, outside of UCX's own.
//
// A short payload is sent along at once, a longer one only after the receiver has named its place:
// over TCP in fragments (ucx_fragments.h), else by UCX's rendezvous, which RDMA needs no copy for.
//
// Not thread-safe: used only by the transfer thread.
class UcxTransport final : public Transport, public PoolReader {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options,
                                                           TransportHandler& handler);
  ~UcxTransport() override;

  std::string address() const override { return address_; }
  absl::Status RegisterRegion(const MemoryRegion& region) override;
  absl::StatusOr<PeerId> Connect(const std::string& address) override;
  absl::Status Send(PeerId peer, OutgoingMessage message) override;
  bool SendsChecksums(PeerId peer, std::size_t payload_bytes) const override {
    return payload_bytes >= kFragmentedBytes && CarrierOf(peer) == "tcp";
  }
  void Place(PeerId peer,
             TransferToken token,
             std::vector<std::span<std::byte>> destinations) override;
  void Close(PeerId peer) override;
  bool Progress() override;
  std::optional<int> PrepareToSleep() override;
  // The kernel holds what comes meanwhile. The last message of a transfer is waited for.
  bool Streaming() const override { return events_.incoming() > 1; }
  std::string CarrierOf(PeerId peer) const override;
  std::vector<PoolReader*> readers() override {
    return rdma_ ? std::vector<PoolReader*>{this} : std::vector<PoolReader*>();
  }

  // PoolReader, with RDMA only.
  TransportKind kind() const override { return TransportKind::kRdma; }
  std::string Door() const override { return door_; }
  absl::Status Open(PeerId peer, std::string_view door, std::uint64_t pool_bytes) override;
  absl::Status Read(PeerId peer, PoolRead read) override;

 private:
  // A connection: open, then closing, then gone once the close and every operation have called
  // back.
  struct Endpoint {
    struct Sending {
      Operation* message;
      FragmentCutter cutter;
      FragmentHeader next;
    };
    UcxEvents::EndpointTag tag;
    ucp_ep_h handle = nullptr;
    bool closing = false;
    int outstanding = 0;                                       // operations
    absl::flat_hash_map<TransferToken, Arrival> waiting;       // to be placed later
    absl::flat_hash_map<std::uint64_t, Operation*> announced;  // sends that were not answered
    std::deque<Sending> sending;                               // answered, to be posted
    int fragments_posted = 0;                                  // and not called back
    std::uint64_t next_sequence = 1;
    absl::Status why;  // of the end
    mutable std::string carrier;
    UcpRemoteKey pool_key;
    std::uint64_t pool_address = 0;  // the peer's
    std::uint64_t pool_bytes = 0;
  };

  // Gets of one read; reported when the last is over.
  struct PendingRead {
    int gets = 0;
    absl::Status status;
  };

  UcxTransport(UcpContext context, bool rdma, TransportHandler& handler)
      : context_(std::move(context)), rdma_(rdma), handler_(handler) {}

  absl::Status Listen(const TransportOptions& options);
  absl::StatusOr<PeerId> AddEndpoint(ucp_ep_params_t params);
  Endpoint* FindOpen(PeerId peer);
  Operation& StartOperation(Endpoint& endpoint, OperationKind kind, TransferToken token);
  void Follow(Operation& operation, ucs_status_ptr_t request);
  // Both leave `operation` to be followed or abandoned by what is returned.
  ucs_status_ptr_t Post(Endpoint& endpoint, unsigned id, unsigned protocol, Operation& operation);
  absl::Status PostOrAbandon(Endpoint& endpoint,
                             unsigned id,
                             unsigned protocol,
                             Operation& operation);
  absl::Status Announce(Endpoint& endpoint, Operation& message, std::size_t payload_bytes);
  void Answer(Endpoint& endpoint, std::uint64_t sequence, bool accepted);
  void StartFragments(Endpoint& endpoint, const Arrival& answer);
  void PostFragments(Endpoint& endpoint);
  void FragmentSent(Endpoint& endpoint, const Operation& fragment);
  static void GiveUpSending(Endpoint& endpoint, Operation& message);

  bool AcceptRequested();
  bool HandleArrivals();
  void Receive(Endpoint& endpoint, Arrival arrival);
  void Release(const Arrival& arrival);
  void Fill(Endpoint& endpoint,
            const Arrival& arrival,
            TransferToken token,
            std::span<const std::span<std::byte>> destinations,
            std::shared_ptr<CopiedChecksum> copied);
  bool CloseFailed();
  bool ReportDone();
  void GetDone(PeerId peer, TransferToken token, const absl::Status& status);
  void ReportClosedIfDrained(PeerId peer);

  UcpContext context_;
  const bool rdma_;
  TransportHandler& handler_;
  std::string address_;
  std::string door_;
  absl::flat_hash_map<TransferToken, PendingRead> reads_;
  std::vector<UcpMemory> regions_;
  absl::flat_hash_map<PeerId, std::unique_ptr<Endpoint>> endpoints_;
  UcxEvents events_;
  int event_fd_ = -1;  // the worker's
  // Last, so that they go first: destroying them still calls back into `events_` and reads what
  // operations hold.
  UcpWorker worker_;
  UcpListener listener_;
};

absl::StatusOr<std::unique_ptr<Transport>> UcxTransport::Create(const TransportOptions& options,
                                                                TransportHandler& handler) {
  ASSIGN_OR_RETURN(UcpContext context, MakeContext(options.rdma));
  std::unique_ptr<UcxTransport> transport(
      new UcxTransport(std::move(context), options.rdma, handler));
  ASSIGN_OR_RETURN(transport->worker_, MakeWorker(transport->context_.get()));
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
    door_ = std::move(door).Take();
  }
  regions_.push_back(std::move(memory));
  return absl::OkStatus();
}

absl::Status UcxTransport::Open(PeerId peer, std::string_view door, std::uint64_t pool_bytes) {
  Endpoint* endpoint = FindOpen(peer);
  if (endpoint == nullptr) {
    return absl::FailedPreconditionError("the peer is not connected by RDMA");
  }
  ByteReader in(door);
  const std::optional<std::uint64_t> address = in.Get<std::uint64_t>();
  const std::optional<std::uint64_t> bytes = in.Get<std::uint64_t>();
  if (!bytes || in.remaining() == 0 || *bytes < pool_bytes || *address + *bytes < *address) {
    return absl::FailedPreconditionError(
        "the peer describes its pool in a way that is not known here");
  }
  if (const std::string carrier = CarrierOf(peer); !carrier.starts_with("rc")) {
    return absl::FailedPreconditionError(
        absl::StrCat("the connection goes over ", carrier, ", not over RDMA"));
  }
  // UCX is not told how long the key is: what it reads beyond is zeros.
  std::string key(*in.GetBytes(in.remaining()));
  key.resize(key.size() + kKeyPaddingBytes, '\0');
  ucp_rkey_h handle = nullptr;
  const absl::Status unpacked =
      ToStatus(ucp_ep_rkey_unpack(endpoint->handle, key.data(), &handle), "unpack the pool's key");
  if (!unpacked.ok()) {
    return absl::FailedPreconditionError(std::string(unpacked.message()));
  }
  endpoint->pool_key.reset(handle);
  endpoint->pool_address = *address;
  endpoint->pool_bytes = pool_bytes;
  return absl::OkStatus();
}

absl::Status UcxTransport::Read(PeerId peer, PoolRead read) {
  Endpoint* endpoint = FindOpen(peer);
  if (endpoint == nullptr || endpoint->pool_key == nullptr) {
    return absl::UnavailableError("connection is closed");
  }
  for (const PoolRange& range : read.ranges) {
    const std::size_t bytes = range.destination.size();
    if (bytes > endpoint->pool_bytes || range.offset > endpoint->pool_bytes - bytes) {
      return absl::InvalidArgumentError("read outside of the peer's pool");
    }
  }
  reads_[read.token].gets = static_cast<int>(read.ranges.size());
  for (const PoolRange& range : read.ranges) {
    Operation& operation = StartOperation(*endpoint, OperationKind::kGet, read.token);
    ucp_request_param_t params{};
    params.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    params.cb.send = &UcxEvents::OperationDone;
    params.user_data = &operation;
    params.memory_type = UCS_MEMORY_TYPE_HOST;
    Follow(operation,
           ucp_get_nbx(endpoint->handle, range.destination.data(), range.destination.size(),
                       endpoint->pool_address + range.offset, endpoint->pool_key.get(), &params));
  }
  return absl::OkStatus();
}

void UcxTransport::GetDone(PeerId peer, TransferToken token, const absl::Status& status) {
  const auto found = reads_.find(token);
  found->second.status.Update(status);
  if (--found->second.gets == 0) {
    const absl::Status outcome = found->second.status;
    reads_.erase(found);
    handler_.OnReceived(peer, token, outcome);
  }
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

absl::Status UcxTransport::Send(PeerId peer, OutgoingMessage message) {
  Endpoint* endpoint = FindOpen(peer);
  if (endpoint == nullptr) {
    return absl::UnavailableError("connection is closed");
  }
  Operation& operation = StartOperation(*endpoint, OperationKind::kSend, message.token);
  operation.header = std::move(message.header);
  operation.send_checksum = message.send_checksum;
  const bool control = message.payload.empty();
  std::size_t payload_bytes = 0;
  for (const std::span<const std::byte> part : message.payload) {
    payload_bytes += part.size();
    operation.parts.push_back(
        {.buffer = const_cast<std::byte*>(part.data()), .length = part.size()});
  }
  if (control) {
    operation.parts.push_back(
        {.buffer = operation.header.data(), .length = operation.header.size()});
  }
  if (!control && payload_bytes >= kFragmentedBytes) {
    if (CarrierOf(peer) == "tcp") {
      return Announce(*endpoint, operation, payload_bytes);
    }
    return PostOrAbandon(*endpoint, kDataId, UCP_AM_SEND_FLAG_RNDV, operation);
  }
  return PostOrAbandon(*endpoint, control ? kControlId : kDataId, UCP_AM_SEND_FLAG_EAGER,
                       operation);
}

// The operation's parts as payload, behind its header but for control messages, whose only part it
// is.
ucs_status_ptr_t UcxTransport::Post(Endpoint& endpoint,
                                    unsigned id,
                                    unsigned protocol,
                                    Operation& operation) {
  const bool with_header = id == kDataId || id == kFragmentId;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_FLAGS |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  // The reply flag is what tells the receiver which endpoint this came from.
  params.flags = UCP_AM_SEND_FLAG_REPLY | protocol;
  params.cb.send = &UcxEvents::OperationDone;
  params.datatype = UCP_DATATYPE_IOV;
  params.user_data = &operation;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  return ucp_am_send_nbx(endpoint.handle, id, with_header ? operation.header.data() : nullptr,
                         with_header ? operation.header.size() : 0, operation.parts.data(),
                         operation.parts.size(), &params);
}

absl::Status UcxTransport::PostOrAbandon(Endpoint& endpoint,
                                         unsigned id,
                                         unsigned protocol,
                                         Operation& operation) {
  const ucs_status_ptr_t request = Post(endpoint, id, protocol, operation);
  if (UCS_PTR_IS_ERR(request)) {
    --endpoint.outstanding;
    events_.Abandon(operation);
    return ToStatus(UCS_PTR_STATUS(request), "send to the peer");
  }
  Follow(operation, request);
  return absl::OkStatus();
}

absl::Status UcxTransport::Announce(Endpoint& endpoint,
                                    Operation& message,
                                    std::size_t payload_bytes) {
  const std::uint64_t sequence = endpoint.next_sequence++;
  Operation& announcement = StartOperation(endpoint, OperationKind::kFragment, TransferToken());
  announcement.header = EncodeAnnouncement({sequence, payload_bytes}, message.header);
  announcement.parts.push_back(
      {.buffer = announcement.header.data(), .length = announcement.header.size()});
  const absl::Status posted =
      PostOrAbandon(endpoint, kAnnounceId, UCP_AM_SEND_FLAG_EAGER, announcement);
  if (!posted.ok()) {
    --endpoint.outstanding;
    events_.Abandon(message);
    return posted;
  }
  endpoint.announced[sequence] = &message;
  return absl::OkStatus();
}

// A lost answer means a lost connection, which ends the message at both sides.
void UcxTransport::Answer(Endpoint& endpoint, std::uint64_t sequence, bool accepted) {
  Operation& answer = StartOperation(endpoint, OperationKind::kFragment, TransferToken());
  answer.header = EncodeAnswer({sequence, accepted});
  answer.parts.push_back({.buffer = answer.header.data(), .length = answer.header.size()});
  PostOrAbandon(endpoint, kAnswerId, UCP_AM_SEND_FLAG_EAGER, answer).IgnoreError();
}

void UcxTransport::StartFragments(Endpoint& endpoint, const Arrival& answer) {
  const auto announced = endpoint.announced.find(answer.sequence);
  if (announced == endpoint.announced.end()) {
    return;
  }
  Operation& message = *announced->second;
  endpoint.announced.erase(announced);
  if (!answer.accepted) {
    events_.Finish(message, UCS_OK);
    return;
  }
  message.status = UCS_OK;
  endpoint.sending.push_back({.message = &message,
                              .cutter = FragmentCutter(message.parts),
                              .next = {.sequence = answer.sequence}});
  PostFragments(endpoint);
}

// Few at a time: what waits inside UCX has left the cache when its turn comes, and control messages
// wait behind it.
void UcxTransport::PostFragments(Endpoint& endpoint) {
  while (!endpoint.sending.empty() && endpoint.fragments_posted < kFragmentsPosted) {
    Endpoint::Sending& sending = endpoint.sending.front();
    Operation& message = *sending.message;
    Operation& fragment = StartOperation(endpoint, OperationKind::kFragment, TransferToken());
    fragment.message = &message;
    fragment.parts = sending.cutter.Next();
    std::size_t bytes = 0;
    for (const ucp_dt_iov_t& part : fragment.parts) {
      bytes += part.length;
      if (message.send_checksum) {
        sending.next.crc32c =
            Crc32c({static_cast<const char*>(part.buffer), part.length}, sending.next.crc32c);
      }
    }
    fragment.header = EncodeFragmentHeader(sending.next);
    sending.next.offset += bytes;
    ++message.fragments_posted;
    ++endpoint.fragments_posted;
    if (sending.cutter.done()) {
      message.all_posted = true;
      endpoint.sending.pop_front();
    }
    Follow(fragment, Post(endpoint, kFragmentId, UCP_AM_SEND_FLAG_EAGER, fragment));
  }
}

// The message is done with its last fragment, and failed if any of them has.
void UcxTransport::FragmentSent(Endpoint& endpoint, const Operation& fragment) {
  if (fragment.message == nullptr) {
    return;
  }
  --endpoint.fragments_posted;
  Operation& message = *fragment.message;
  --message.fragments_posted;
  if (fragment.status != UCS_OK) {
    message.status = fragment.status;
    GiveUpSending(endpoint, message);
  }
  if (message.all_posted && message.fragments_posted == 0) {
    events_.Finish(message, message.status);
  }
  if (!endpoint.closing) {
    PostFragments(endpoint);
  }
}

// What has not been posted of the message never will be.
void UcxTransport::GiveUpSending(Endpoint& endpoint, Operation& message) {
  message.all_posted = true;
  std::erase_if(endpoint.sending,
                [&](const Endpoint::Sending& sending) { return sending.message == &message; });
}

void UcxTransport::Close(PeerId peer) {
  Endpoint* endpoint = FindOpen(peer);
  if (endpoint == nullptr) {
    return;
  }
  std::erase_if(events_.arrivals(), [&](const Arrival& arrival) {
    if (arrival.peer == peer) {
      Release(arrival);
    }
    return arrival.peer == peer;
  });
  for (const auto& [token, arrival] : endpoint->waiting) {
    Release(arrival);
    events_.Finish(StartOperation(*endpoint, OperationKind::kReceive, token), UCS_ERR_CANCELED);
  }
  endpoint->waiting.clear();
  for (const auto& [sequence, message] : endpoint->announced) {
    events_.Finish(*message, UCS_ERR_CANCELED);
  }
  endpoint->announced.clear();
  for (const Endpoint::Sending& sending : endpoint->sending) {
    sending.message->all_posted = true;
    sending.message->status = UCS_ERR_CANCELED;
    if (sending.message->fragments_posted == 0) {
      events_.Finish(*sending.message, UCS_ERR_CANCELED);
    }
  }
  endpoint->sending.clear();
  events_.CancelIncoming(peer);
  endpoint->closing = true;
  if (endpoint->why.ok()) {
    endpoint->why = absl::CancelledError("closed here");
  }
  events_.Unbind(endpoint->handle);
  Operation& operation = StartOperation(*endpoint, OperationKind::kClose, TransferToken());
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
  Follow(operation, request);
}

bool UcxTransport::Progress() {
  bool worked = ucp_worker_progress(worker_.get()) != 0;
  for (const PeerId peer : events_.TakeHeard()) {
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

UcxTransport::Endpoint* UcxTransport::FindOpen(PeerId peer) {
  const auto found = endpoints_.find(peer);
  return found == endpoints_.end() || found->second->closing ? nullptr : found->second.get();
}

Operation& UcxTransport::StartOperation(Endpoint& endpoint,
                                        OperationKind kind,
                                        TransferToken token) {
  ++endpoint.outstanding;
  return events_.Start(endpoint.tag.peer, kind, token);
}

// A request calls back when it is done; anything else is the outcome already.
void UcxTransport::Follow(Operation& operation, ucs_status_ptr_t request) {
  if (!UCS_PTR_IS_PTR(request)) {
    events_.Finish(operation, UCS_PTR_RAW_STATUS(request));
  }
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
      StartFragments(*endpoint, arrival);
    } else if (endpoint != nullptr) {
      Receive(*endpoint, std::move(arrival));
    }
  }
  return any;
}

void UcxTransport::Receive(Endpoint& endpoint, Arrival arrival) {
  const ReceivePlan plan = handler_.OnData(arrival.peer, arrival.header, arrival.payload_bytes);
  if (!plan.accept || endpoint.closing) {
    Release(arrival);
    if (arrival.kind == Arrival::Kind::kAnnounce && !endpoint.closing) {
      Answer(endpoint, arrival.sequence, /*accepted=*/false);
    }
    if (plan.accept) {
      handler_.OnReceived(arrival.peer, plan.token, endpoint.why);
    }
  } else if (plan.later) {
    arrival.copied = plan.copied;
    endpoint.waiting[plan.token] = std::move(arrival);
  } else {
    Fill(endpoint, arrival, plan.token, plan.destinations, plan.copied);
  }
}

void UcxTransport::Place(PeerId peer,
                         TransferToken token,
                         std::vector<std::span<std::byte>> destinations) {
  Endpoint* endpoint = FindOpen(peer);
  if (endpoint == nullptr) {
    return;
  }
  if (const auto waiting = endpoint->waiting.find(token); waiting != endpoint->waiting.end()) {
    const Arrival arrival = std::move(waiting->second);
    endpoint->waiting.erase(waiting);
    Fill(*endpoint, arrival, token, destinations, arrival.copied);
  }
}

// A long message that is not wanted any more: its sender is told that it is done.
void UcxTransport::Release(const Arrival& arrival) {
  if (arrival.descriptor != nullptr) {
    ucp_am_data_release(worker_.get(), arrival.descriptor);
  }
}

void UcxTransport::Fill(Endpoint& endpoint,
                        const Arrival& arrival,
                        TransferToken token,
                        std::span<const std::span<std::byte>> destinations,
                        std::shared_ptr<CopiedChecksum> copied) {
  Operation& operation = StartOperation(endpoint, OperationKind::kReceive, token);
  if (arrival.kind == Arrival::Kind::kAnnounce) {
    const bool expected = events_.Expect(
        endpoint.tag.peer, arrival.sequence,
        {.operation = &operation,
         .payload_bytes = arrival.payload_bytes,
         .writer = ScatterWriter({destinations.begin(), destinations.end()}, std::move(copied))});
    if (expected) {
      Answer(endpoint, arrival.sequence, /*accepted=*/true);
    } else {
      events_.Finish(operation, UCS_ERR_INVALID_PARAM);
    }
    return;
  }
  if (arrival.descriptor == nullptr) {
    const char* from = arrival.payload.data();
    for (const std::span<std::byte> destination : destinations) {
      std::memcpy(destination.data(), from, destination.size());
      from += destination.size();
    }
    events_.Finish(operation, UCS_OK);
    return;
  }
  for (const std::span<std::byte> destination : destinations) {
    operation.parts.push_back({.buffer = destination.data(), .length = destination.size()});
  }
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_MEMORY_TYPE |
                        UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.cb.recv_am = &UcxEvents::ReceiveDone;
  params.datatype = UCP_DATATYPE_IOV;
  params.user_data = &operation;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  const ucs_status_ptr_t request = ucp_am_recv_data_nbx(
      worker_.get(), arrival.descriptor, operation.parts.data(), operation.parts.size(), &params);
  Follow(operation, request);
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
        FragmentSent(*endpoints_.at(operation->peer), *operation);
        break;
      case OperationKind::kGet:
        GetDone(operation->peer, operation->token,
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
