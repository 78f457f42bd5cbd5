#include "decode_worker/prefill_client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/support/client_callback.h>

#include <chrono>
#include <utility>

#include "baton/v1/worker.grpc.pb.h"
#include "common/status_macros.h"
#include "common/tls_hint.h"
#include "proto/grpc_runtime.h"
#include "proto/peer_channel.h"
#include "proto/status_conversion.h"

namespace baton {

struct PrefillClient::Credentials {
  std::shared_ptr<grpc::ChannelCredentials> channel;
  TlsUse tls;
};

struct PrefillClient::Peer {
  std::string instance;  // empty: nobody has said
  std::unique_ptr<v1::PrefillWorker::Stub> stub;
};

namespace {

// Lives from StartCall to OnDone; deletes itself there, as gRPC's reactors do.
class PrefillReactor final : public grpc::ClientReadReactor<v1::PrefillEvent> {
 public:
  PrefillReactor(std::shared_ptr<grpc::ClientContext> context,
                 v1::PrefillRequest request,
                 std::shared_ptr<PrefillCallEvents> events,
                 std::shared_ptr<void> peer,
                 TlsUse tls)
      : context_(std::move(context)),
        request_(std::move(request)),
        events_(std::move(events)),
        peer_(std::move(peer)),
        tls_(tls) {}

  void Begin(v1::PrefillWorker::Stub& stub) {
    stub.async()->Prefill(context_.get(), &request_, this);
    StartRead(&event_);
    StartCall();
  }

 private:
  void OnReadDone(bool ok) override {
    if (ok) {
      events_->OnPrefillEvent(event_);
      StartRead(&event_);
    }
  }

  void OnDone(const grpc::Status& status) override {
    events_->OnPrefillEnd(WithTlsHint(FromGrpcStatus(status), tls_));
    delete this;
  }

  const std::shared_ptr<grpc::ClientContext> context_;  // shared with the handle that may cancel
  const v1::PrefillRequest request_;
  const std::shared_ptr<PrefillCallEvents> events_;
  const std::shared_ptr<void> peer_;
  const TlsUse tls_;
  v1::PrefillEvent event_;
};

class CallHandle final : public PrefillCall {
 public:
  explicit CallHandle(std::shared_ptr<grpc::ClientContext> context)
      : context_(std::move(context)) {}
  void Cancel() override { context_->TryCancel(); }

 private:
  const std::shared_ptr<grpc::ClientContext> context_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PrefillClient>> PrefillClient::Create(const TlsFiles& tls) {
  KeepGrpcRunning();
  auto credentials = std::make_unique<Credentials>();
  ASSIGN_OR_RETURN(credentials->channel, MakeChannelCredentials(tls));
  credentials->tls = tls.use();
  return std::unique_ptr<PrefillClient>(new PrefillClient(std::move(credentials)));
}

PrefillClient::PrefillClient(std::unique_ptr<Credentials> credentials)
    : credentials_(std::move(credentials)) {}

PrefillClient::~PrefillClient() = default;

// A worker that was started again is another peer: a connection to the one before may still be
// waiting before it tries again, and calls on it would fail at once.
std::shared_ptr<PrefillClient::Peer> PrefillClient::PeerAt(const std::string& address,
                                                           const std::string& instance) {
  absl::MutexLock lock(&mutex_);
  std::shared_ptr<Peer>& peer = peers_[address];
  if (peer == nullptr || peer->instance != instance) {
    peer = std::make_shared<Peer>();
    peer->instance = instance;
    peer->stub = v1::PrefillWorker::NewStub(
        grpc::CreateCustomChannel(address, credentials_->channel, PeerChannelArguments()));
  }
  return peer;
}

std::shared_ptr<PrefillCall> PrefillClient::Prefill(const std::string& address,
                                                    v1::PrefillRequest request,
                                                    TimePoint deadline,
                                                    std::shared_ptr<PrefillCallEvents> events) {
  const std::shared_ptr<Peer> peer = PeerAt(address, request.expected_instance_id());
  auto context = std::make_shared<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + (deadline - Clock::System().Now()));
  auto* reactor =
      new PrefillReactor(context, std::move(request), std::move(events), peer, credentials_->tls);
  reactor->Begin(*peer->stub);
  return std::make_shared<CallHandle>(std::move(context));
}

}  // namespace baton
