#include "worker/register_client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/support/client_callback.h>

#include <utility>

#include "baton/v1/worker.grpc.pb.h"
#include "common/status_macros.h"
#include "proto/grpc_runtime.h"
#include "proto/peer_channel.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

// Lives from Begin to OnDone; deletes itself there, as gRPC's reactors do.
class RegisterReactor final : public grpc::ClientBidiReactor<v1::WorkerReport, v1::RouterNotice>,
                              public ReportCall {
 public:
  RegisterReactor(std::unique_ptr<v1::Fleet::Stub> stub,
                  std::shared_ptr<grpc::ClientContext> context,
                  RegisterEvents events)
      : stub_(std::move(stub)), context_(std::move(context)), events_(std::move(events)) {}

  void Begin(ReportHub& hub) {
    stub_->async()->Register(context_.get(), this);
    AddHold();  // of the hub's thread: until OnStreamEnd
    StartRead(&notice_);
    // What the hub writes by now waits for StartCall, so nothing is called back before stream_ is
    // there.
    stream_ = hub.Open(*this);
    StartCall();
  }

 private:
  void StartReport(const v1::WorkerReport& report) override { StartWrite(&report); }
  void OnStreamEnd() override {
    context_->TryCancel();
    RemoveHold();
  }

  void OnWriteDone(bool) override { stream_->OnWritten(); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      stream_->End();
      return;
    }
    if (notice_.has_resync()) {
      stream_->AskSnapshot();
    } else {
      events_.on_notice(notice_);
    }
    StartRead(&notice_);
  }

  void OnDone(const grpc::Status& status) override {
    events_.on_end(FromGrpcStatus(status));
    delete this;
  }

  const std::unique_ptr<v1::Fleet::Stub> stub_;
  const std::shared_ptr<grpc::ClientContext> context_;  // shared with the handle that may cancel
  const RegisterEvents events_;
  v1::RouterNotice notice_;
  std::shared_ptr<ReportStream> stream_;  // shared with the hub
};

}  // namespace

RegisterCall::RegisterCall(std::shared_ptr<grpc::ClientContext> context)
    : context_(std::move(context)) {}

void RegisterCall::Cancel() {
  context_->TryCancel();
}

RouterConnection::RouterConnection(std::shared_ptr<grpc::Channel> channel)
    : channel_(std::move(channel)) {}

std::unique_ptr<RegisterCall> RouterConnection::Register(ReportHub& hub, RegisterEvents events) {
  auto context = std::make_shared<grpc::ClientContext>();
  auto* reactor = new RegisterReactor(v1::Fleet::NewStub(channel_), context, std::move(events));
  reactor->Begin(hub);
  return std::make_unique<RegisterCall>(std::move(context));
}

struct RegisterClient::Credentials {
  std::shared_ptr<grpc::ChannelCredentials> channel;
};

absl::StatusOr<std::unique_ptr<RegisterClient>> RegisterClient::Create(const TlsFiles& tls) {
  KeepGrpcRunning();
  auto credentials = std::make_unique<Credentials>();
  ASSIGN_OR_RETURN(credentials->channel, MakeChannelCredentials(tls));
  return std::unique_ptr<RegisterClient>(new RegisterClient(std::move(credentials)));
}

RegisterClient::RegisterClient(std::unique_ptr<Credentials> credentials)
    : credentials_(std::move(credentials)) {}

RegisterClient::~RegisterClient() = default;

std::unique_ptr<RouterConnection> RegisterClient::Connect(const std::string& address,
                                                          const std::string& router) {
  grpc::ChannelArguments arguments = PeerChannelArguments();
  // A certificate is the name's, not that of one of its addresses.
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, router);
  return std::make_unique<RouterConnection>(
      grpc::CreateCustomChannel(address, credentials_->channel, arguments));
}

}  // namespace baton
