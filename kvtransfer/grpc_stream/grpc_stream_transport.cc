#include "kvtransfer/grpc_stream/grpc_stream_transport.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kvtransfer/grpc_stream/kv_service.h"

namespace baton::grpc_stream {
namespace {

constexpr std::string_view kScheme = "grpc:";
// Payloads that have arrived and wait to be placed; the peer waits with the next.
constexpr std::size_t kMostUnplaced = 4;
constexpr int kEndPollMs = 5;

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
    // A heartbeat must not wait behind megabytes; nothing relies on the order of the two.
    auto& queue = message.payload.empty() ? connection->control : connection->data;
    queue.push_back(std::move(message));
    WriteNext(*connection);
    return absl::OkStatus();
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
    return !events.empty() || !placed.empty();
  }

  std::optional<int> PrepareToSleep() override {
    return placed_.empty() ? std::optional(inbox_->fd()) : std::nullopt;
  }

  std::string CarrierOf(PeerId) const override { return "grpc"; }

 private:
  struct Connection {
    PeerId peer;
    Stream* stream = nullptr;  // gone after Finish
    std::deque<OutgoingMessage> control;
    std::deque<OutgoingMessage> data;
    std::optional<TransferToken> writing;
    absl::flat_hash_map<TransferToken, std::string> unplaced;
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
    if (connection.writing || connection.closing ||
        (connection.control.empty() && connection.data.empty())) {
      return;
    }
    auto& queue = connection.control.empty() ? connection.data : connection.control;
    OutgoingMessage message = std::move(queue.front());
    queue.pop_front();
    Frame frame{.header = std::move(message.header), .payload = {}};
    std::size_t bytes = 0;
    for (const std::span<const std::byte> part : message.payload) {
      bytes += part.size();
    }
    frame.payload.reserve(bytes);
    for (const std::span<const std::byte> part : message.payload) {
      frame.payload.append(reinterpret_cast<const char*>(part.data()), part.size());
    }
    connection.writing = message.token;
    connection.stream->Write(std::move(frame));
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
    const TransferToken token = *std::exchange(connection.writing, std::nullopt);
    if (!ok) {
      BeginClosing(connection, absl::UnavailableError("connection closed by the peer"));
    }
    if (connection.closing) {
      FinishIfIdle(connection);
    }
    if (!silent_) {
      handler_.OnSent(connection.peer, token, ok ? absl::OkStatus() : connection.why);
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
    if (frame.header.size() > kMaxDataHeaderBytes) {
      return;
    }
    const ReceivePlan plan = handler_.OnData(peer, frame.header, frame.payload.size());
    if (!plan.accept) {
      return;
    }
    if (connection.closing) {
      handler_.OnReceived(peer, plan.token, connection.why);
    } else if (plan.later) {
      connection.unplaced[plan.token] = std::move(frame.payload);
    } else {
      Fill(frame.payload, plan.destinations);
      handler_.OnReceived(peer, plan.token, absl::OkStatus());
    }
  }

  void FillPlaced(const Placed& placed) {
    Connection* connection = FindOpen(placed.peer);
    if (connection == nullptr) {
      return;
    }
    const auto waiting = connection->unplaced.find(placed.token);
    if (waiting == connection->unplaced.end()) {
      return;
    }
    Fill(waiting->second, placed.destinations);
    connection->unplaced.erase(waiting);
    ReadNext(*connection);
    handler_.OnReceived(placed.peer, placed.token, absl::OkStatus());
  }

  static void Fill(const std::string& payload,
                   const std::vector<std::span<std::byte>>& destinations) {
    const char* from = payload.data();
    for (const std::span<std::byte> destination : destinations) {
      std::memcpy(destination.data(), from, destination.size());
      from += destination.size();
    }
  }

  void BeginClosing(Connection& connection, const absl::Status& why) {
    if (connection.closing) {
      return;
    }
    connection.closing = true;
    connection.why = why;
    connection.stream->Cancel();
    FinishIfIdle(connection);
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
    for (const auto* queue : {&connection->control, &connection->data}) {
      for (const OutgoingMessage& message : *queue) {
        handler_.OnSent(connection->peer, message.token, why);
      }
    }
    for (const auto& [token, payload] : connection->unplaced) {
      handler_.OnReceived(connection->peer, token, why);
    }
    handler_.OnClosed(connection->peer, why);
  }

  const std::shared_ptr<StreamInbox> inbox_;  // shared with streams, which may end later
  TransportHandler& handler_;
  std::string address_;
  bool silent_ = false;  // being destroyed: nothing is reported any more
  absl::flat_hash_map<std::uint64_t, std::unique_ptr<Connection>> connections_;  // by stream
  absl::flat_hash_map<PeerId, std::uint64_t> numbers_;
  std::vector<Placed> placed_;
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
