#include "kvtransfer/grpc_stream/grpc_stream_transport.h"

#include <poll.h>

#include <atomic>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kvtransfer/grpc_stream/incoming_payload.h"
#include "kvtransfer/grpc_stream/kv_service.h"
#include "kvtransfer/grpc_stream/outgoing_frames.h"

namespace baton::grpc_stream {
namespace {

constexpr std::string_view kScheme = "grpc:";
// Payloads that have arrived and wait to be placed; the peer waits with the next.
constexpr std::size_t kMostUnplaced = 4;
constexpr int kEndPollMs = 5;
// Of a message of the protocol, which is 2 to 4 MB.
constexpr std::uint64_t kMaxPayloadBytes = 32 << 20;

std::string HostOf(const std::string& host_port) {
  return host_port.substr(0, host_port.rfind(':'));
}

bool IsHostPort(std::string_view address) {
  const std::size_t colon = address.rfind(':');
  return colon != std::string_view::npos && colon > 0 && colon + 1 < address.size();
}

// Drives the streams with what their reactors have left in the inbox.
//
// Not thread-safe: used only by the transfer thread.
class GrpcStreamTransport final : public Transport {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options,
                                                           TransportHandler& handler) {
    ASSIGN_OR_RETURN(Wakeup wakeup, Wakeup::Create());
    auto inbox = std::make_shared<StreamInbox>(std::move(wakeup));
    std::unique_ptr<GrpcStreamTransport> transport(new GrpcStreamTransport(inbox, handler));
    ASSIGN_OR_RETURN(transport->client_, KvClient::Create(options.tls, inbox));
    ASSIGN_OR_RETURN(transport->server_, KvServer::Start(options.listen, options.tls, inbox));
    const std::string& host = options.advertise_host;
    transport->address_ =
        absl::StrCat(std::string(kScheme), host.empty() ? HostOf(options.listen) : host, ":",
                     transport->server_->port());
    return transport;
  }

  ~GrpcStreamTransport() override {
    silent_ = true;
    for (const auto& [number, connection] : connections_) {
      BeginClosing(*connection, absl::CancelledError("closed here"));
    }
    // Shutting a server down waits for its streams, and these wait for us to finish them; gRPC ends
    // what is cancelled by itself, within milliseconds.
    std::atomic<bool> down = server_ == nullptr;
    std::jthread shutdown([&] {
      if (server_ != nullptr) {
        server_->Shutdown();
        down = true;
      }
    });
    while (!down || !connections_.empty()) {
      pollfd fd{.fd = inbox_->fd(), .events = POLLIN, .revents = 0};
      poll(&fd, 1, kEndPollMs);
      Progress();
    }
  }

  std::string address() const override { return address_; }

  absl::Status RegisterRegion(const MemoryRegion& region) override {
    return region.kind == MemoryKind::kHost
               ? absl::OkStatus()
               : absl::FailedPreconditionError("gRPC moves host memory only");
  }

  absl::StatusOr<PeerId> Connect(const std::string& address) override {
    const std::string_view host_port =
        std::string_view(address).substr(address.starts_with(kScheme) ? kScheme.size() : 0);
    if (!address.starts_with(kScheme) || !IsHostPort(host_port)) {
      return absl::InvalidArgumentError(
          absl::StrCat("address \"", address, "\" is not grpc:host:port"));
    }
    const KvClient::Made made = client_->Connect(std::string(host_port));
    return Add(made.number, made.stream).peer;
  }

  absl::Status Send(PeerId peer, OutgoingMessage message) override {
    Connection* connection = FindOpen(peer);
    if (connection == nullptr) {
      return absl::UnavailableError("connection is closed");
    }
    connection->outgoing.Push(std::move(message));
    WriteNext(*connection);
    return absl::OkStatus();
  }

  bool SendsChecksums(PeerId /*peer*/, std::size_t /*payload_bytes*/) const override {
    return true;
  }

  void Place(PeerId peer,
             TransferToken token,
             std::vector<std::span<std::byte>> destinations) override {
    placed_.push_back({.peer = peer, .token = token, .destinations = std::move(destinations)});
  }

  void Close(PeerId peer) override {
    if (Connection* connection = FindOpen(peer)) {
      BeginClosing(*connection, absl::CancelledError("closed here"));
    }
  }

  bool Progress() override {
    std::vector<StreamEvent> events = inbox_->TakeAll();
    for (StreamEvent& event : events) {
      Handle(event);
    }
    const std::vector<Placed> placed = std::exchange(placed_, {});
    for (const Placed& one : placed) {
      FillPlaced(one);
    }
    const std::vector<std::uint64_t> closing = std::exchange(closing_, {});
    for (const std::uint64_t number : closing) {
      if (const auto found = connections_.find(number); found != connections_.end()) {
        LetGo(*found->second);
      }
    }
    return !events.empty() || !placed.empty() || !closing.empty();
  }

  std::optional<int> PrepareToSleep() override {
    return placed_.empty() && closing_.empty() ? std::optional(inbox_->fd()) : std::nullopt;
  }

  std::string CarrierOf(PeerId) const override { return "grpc"; }

 private:
  struct Connection {
    PeerId peer;
    Stream* stream = nullptr;  // gone after Finish
    OutgoingFrames outgoing;
    bool writing = false;
    std::optional<TransferToken> written_with_this;  // the message that ends with what is written
    std::optional<IncomingPayload> arriving;
    absl::flat_hash_map<TransferToken, IncomingPayload>
        unplaced;  // whole, but nobody has said where to
    bool reading = false;
    bool closing = false;
    bool finished = false;
    absl::Status why;
  };
  struct Placed {
    PeerId peer;
    TransferToken token;
    std::vector<std::span<std::byte>> destinations;
  };

  GrpcStreamTransport(std::shared_ptr<StreamInbox> inbox, TransportHandler& handler)
      : inbox_(std::move(inbox)), handler_(handler) {}

  Connection& Add(std::uint64_t number, Stream* stream) {
    auto owned = std::make_unique<Connection>();
    Connection& connection = *owned;
    connection.peer = MakePeerId();
    connection.stream = stream;
    numbers_[connection.peer] = number;
    connections_[number] = std::move(owned);
    ReadNext(connection);
    return connection;
  }

  Connection* FindOpen(PeerId peer) {
    const auto number = numbers_.find(peer);
    if (number == numbers_.end()) {
      return nullptr;
    }
    Connection& connection = *connections_.at(number->second);
    return connection.closing ? nullptr : &connection;
  }

  void ReadNext(Connection& connection) {
    if (!connection.reading && !connection.closing && connection.unplaced.size() < kMostUnplaced) {
      connection.reading = true;
      connection.stream->Read();
    }
  }

  void WriteNext(Connection& connection) {
    if (connection.writing || connection.closing || connection.outgoing.empty()) {
      return;
    }
    OutgoingFrames::Cut cut = connection.outgoing.Next();
    connection.writing = true;
    connection.written_with_this = cut.ends;
    connection.stream->Write(std::move(cut.frame));
  }

  void Handle(StreamEvent& event) {
    if (event.kind == StreamEvent::Kind::kAccepted) {
      Connection& connection = Add(event.stream, event.made);
      if (silent_) {
        BeginClosing(connection, absl::CancelledError("closed here"));
      } else {
        handler_.OnAccepted(connection.peer);
      }
      return;
    }
    Connection& connection = *connections_.at(event.stream);
    switch (event.kind) {
      case StreamEvent::Kind::kAccepted:
        break;
      case StreamEvent::Kind::kRead:
        connection.reading = false;
        if (!connection.closing) {
          Receive(connection, std::move(event.frame));
          ReadNext(connection);
        }
        break;
      case StreamEvent::Kind::kReadEnded:
        connection.reading = false;
        BeginClosing(connection, absl::UnavailableError("connection closed by the peer"));
        break;
      case StreamEvent::Kind::kWritten:
      case StreamEvent::Kind::kWriteFailed:
        Written(connection, event.kind == StreamEvent::Kind::kWritten);
        break;
      case StreamEvent::Kind::kCancelled:
        BeginClosing(connection, absl::UnavailableError("connection closed by the peer"));
        break;
      case StreamEvent::Kind::kDone:
        ReportClosed(event.stream, event.status);
        break;
    }
  }

  void Written(Connection& connection, bool ok) {
    const std::optional<TransferToken> ended =
        std::exchange(connection.written_with_this, std::nullopt);
    connection.writing = false;
    if (!ok) {
      BeginClosing(connection, absl::UnavailableError("connection closed by the peer"));
    }
    if (connection.closing) {
      FinishIfIdle(connection);
    }
    if (ended && !silent_) {
      handler_.OnSent(connection.peer, *ended, ok ? absl::OkStatus() : connection.why);
    }
    WriteNext(connection);
  }

  void Receive(Connection& connection, Frame frame) {
    const PeerId peer = connection.peer;
    if (frame.payload.empty()) {
      if (frame.header.size() <= kMaxControlBytes) {
        handler_.OnControl(peer, frame.header);
      }
      return;
    }
    handler_.OnHeard(peer);
    if (!frame.header.empty() && !Begin(connection, frame)) {
      return;
    }
    std::optional<IncomingPayload>& arriving = connection.arriving;
    if (!arriving) {
      return;  // of nothing that was announced
    }
    arriving->Take(frame);
    if (arriving->whole()) {
      End(connection, *std::exchange(arriving, std::nullopt));
    }
  }

  // The first frame of a payload. False when there is nothing to take.
  bool Begin(Connection& connection, const Frame& frame) {
    if (frame.header.size() > kMaxDataHeaderBytes || frame.more_bytes > kMaxPayloadBytes ||
        connection.arriving) {
      return false;
    }
    const std::size_t bytes = frame.payload.size() + static_cast<std::size_t>(frame.more_bytes);
    ReceivePlan plan = handler_.OnData(connection.peer, frame.header, bytes);
    if (connection.closing) {
      if (plan.accept) {
        handler_.OnReceived(connection.peer, plan.token, connection.why);
      }
      return false;
    }
    connection.arriving.emplace(std::move(plan), bytes);
    return true;
  }

  // All of a payload is here.
  void End(Connection& connection, IncomingPayload payload) {
    const TransferToken token = payload.token();
    if (payload.placed()) {
      handler_.OnReceived(connection.peer, token, absl::OkStatus());
    } else if (payload.accepted()) {
      connection.unplaced.emplace(token, std::move(payload));
    }
  }

  void FillPlaced(const Placed& placed) {
    Connection* connection = FindOpen(placed.peer);
    if (connection == nullptr) {
      return;
    }
    std::optional<IncomingPayload>& arriving = connection->arriving;
    if (arriving && arriving->accepted() && arriving->token() == placed.token) {
      arriving->Place(placed.destinations);
      return;
    }
    const auto waiting = connection->unplaced.find(placed.token);
    if (waiting != connection->unplaced.end()) {
      IncomingPayload whole = std::move(waiting->second);
      connection->unplaced.erase(waiting);
      whole.Place(placed.destinations);
      ReadNext(*connection);
      End(*connection, std::move(whole));
    }
  }

  void BeginClosing(Connection& connection, const absl::Status& why) {
    if (connection.closing) {
      return;
    }
    connection.closing = true;
    connection.why = why;
    closing_.push_back(numbers_.at(connection.peer));
    connection.stream->Cancel();
    FinishIfIdle(connection);
  }

  // Ends what the connection was in the middle of. Frames are copies, so that neither gRPC nor a
  // peer that does not answer holds any memory of ours; the stream itself may take its time.
  void LetGo(Connection& connection) {
    std::vector<TransferToken> sent = connection.outgoing.TakeUnfinished();
    if (const auto last = std::exchange(connection.written_with_this, std::nullopt)) {
      sent.push_back(*last);
    }
    std::vector<TransferToken> received;
    if (connection.arriving && connection.arriving->accepted()) {
      received.push_back(connection.arriving->token());
    }
    for (const auto& [token, payload] : connection.unplaced) {
      received.push_back(token);
    }
    connection.arriving.reset();
    connection.unplaced.clear();
    if (silent_) {
      return;
    }
    for (const TransferToken token : sent) {
      handler_.OnSent(connection.peer, token, connection.why);
    }
    for (const TransferToken token : received) {
      handler_.OnReceived(connection.peer, token, connection.why);
    }
  }

  void FinishIfIdle(Connection& connection) {
    if (!connection.writing && !connection.finished) {
      connection.finished = true;
      std::exchange(connection.stream, nullptr)->Finish();
    }
  }

  void ReportClosed(std::uint64_t number, const absl::Status& status) {
    const auto found = connections_.find(number);
    const std::unique_ptr<Connection> connection = std::move(found->second);
    connections_.erase(found);
    numbers_.erase(connection->peer);
    if (silent_) {
      return;
    }
    absl::Status why = connection->why;
    if (absl::IsUnavailable(why) && absl::IsUnavailable(status)) {
      why = status;  // says more
    }
    LetGo(*connection);
    handler_.OnClosed(connection->peer, why);
  }

  const std::shared_ptr<StreamInbox> inbox_;  // shared with streams, which may end later
  TransportHandler& handler_;
  std::string address_;
  bool silent_ = false;  // being destroyed: nothing is reported any more
  absl::flat_hash_map<std::uint64_t, std::unique_ptr<Connection>> connections_;  // by stream
  absl::flat_hash_map<PeerId, std::uint64_t> numbers_;
  std::vector<Placed> placed_;
  std::vector<std::uint64_t> closing_;  // connections that have begun to close since
  std::unique_ptr<KvClient> client_;
  std::unique_ptr<KvServer> server_;
};

}  // namespace

TransportFactory MakeTransport(TransportOptions options) {
  return [options = std::move(options)](TransportHandler& handler) {
    return GrpcStreamTransport::Create(options, handler);
  };
}

}  // namespace baton::grpc_stream
