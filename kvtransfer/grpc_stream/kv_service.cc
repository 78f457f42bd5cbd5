#include "kvtransfer/grpc_stream/kv_service.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kvtransfer/grpc_stream/stream_reactor.h"
#include "proto/grpc_runtime.h"
#include "proto/peer_channel.h"

namespace baton::grpc_stream {
namespace {

// A frame has at most 256 KiB of a payload, and a header.
constexpr int kMaxFrameBytes = 1 << 20;
// Read ahead of the reader: several frames, so that the next is there when one has been placed.
constexpr int kLookaheadBytes = 4 << 20;

class Service final : public v1::KvTransfer::CallbackService {
 public:
  explicit Service(std::shared_ptr<StreamInbox> inbox) : inbox_(std::move(inbox)) {}

  grpc::ServerBidiReactor<v1::KvFrame, v1::KvFrame>* Exchange(
      grpc::CallbackServerContext* context) override {
    return new AcceptedStream(inbox_, *context);
  }

 private:
  const std::shared_ptr<StreamInbox> inbox_;  // shared with its streams
};

class Server final : public KvServer {
 public:
  explicit Server(std::shared_ptr<StreamInbox> inbox) : service_(std::move(inbox)) {}
  ~Server() override {
    if (server_ != nullptr) {
      server_->Wait();
    }
  }

  absl::Status Listen(const std::string& listen, const TlsFiles& tls) {
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMaxFrameBytes);
    builder.SetMaxSendMessageSize(kMaxFrameBytes);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kLookaheadBytes);
    ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ServerCredentials> credentials,
                     MakeServerCredentials(tls));
    builder.AddListeningPort(listen, credentials, &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      return absl::UnavailableError(
          absl::StrCat("listen at ", listen,
                       ": the port is taken, the address is not this machine's, or the TLS files "
                       "do not fit together"));
    }
    return absl::OkStatus();
  }

  int port() const override { return port_; }
  void Shutdown() override { server_->Shutdown(std::chrono::system_clock::now()); }

 private:
  Service service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class Client final : public KvClient {
 public:
  Client(std::shared_ptr<grpc::ChannelCredentials> credentials, std::shared_ptr<StreamInbox> inbox)
      : credentials_(std::move(credentials)), inbox_(std::move(inbox)) {}

  Made Connect(const std::string& host_port) override {
    grpc::ChannelArguments arguments = PeerChannelArguments();
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kLookaheadBytes);
    arguments.SetMaxReceiveMessageSize(kMaxFrameBytes);
    // A connection of its own: the stream ends with it.
    v1::KvTransfer::Stub stub(grpc::CreateCustomChannel(host_port, credentials_, arguments));
    auto* stream = new ConnectedStream(inbox_);
    const std::uint64_t number = stream->number();
    stream->Begin(stub);
    return {.number = number, .stream = stream};
  }

 private:
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  const std::shared_ptr<StreamInbox> inbox_;  // shared with its streams
};

}  // namespace

std::uint64_t MakeStreamNumber() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

absl::StatusOr<std::unique_ptr<KvServer>> KvServer::Start(const std::string& listen,
                                                          const TlsFiles& tls,
                                                          std::shared_ptr<StreamInbox> inbox) {
  KeepGrpcRunning();
  auto server = std::make_unique<Server>(std::move(inbox));
  RETURN_IF_ERROR(server->Listen(listen, tls));
  return server;
}

absl::StatusOr<std::unique_ptr<KvClient>> KvClient::Create(const TlsFiles& tls,
                                                           std::shared_ptr<StreamInbox> inbox) {
  KeepGrpcRunning();
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::ChannelCredentials> credentials,
                   MakeChannelCredentials(tls));
  return std::make_unique<Client>(std::move(credentials), std::move(inbox));
}

}  // namespace baton::grpc_stream
