#include "worker/register_call.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <utility>

#include "proto/status_conversion.h"

namespace baton {
namespace {

// Lives from Begin to OnDone; deletes itself there, as gRPC's reactors do.
class RegisterReactor final : public grpc::ClientBidiReactor<v1::WorkerReport, v1::RouterNotice>,
                              public ReportCall {
 public:
  RegisterReactor(std::shared_ptr<grpc::ClientContext> context, RegisterCall::Events events)
      : context_(std::move(context)), events_(std::move(events)) {}

  void Begin(v1::Fleet::Stub& stub, ReportHub& hub) {
    stub.async()->Register(context_.get(), this);
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

  const std::shared_ptr<grpc::ClientContext> context_;  // shared with the handle that may cancel
  const RegisterCall::Events events_;
  v1::RouterNotice notice_;
  std::shared_ptr<ReportStream> stream_;  // shared with the hub
};

}  // namespace

RegisterCall::RegisterCall(std::shared_ptr<grpc::ClientContext> context)
    : context_(std::move(context)) {}

std::unique_ptr<RegisterCall> RegisterCall::Begin(v1::Fleet::Stub& stub,
                                                  ReportHub& hub,
                                                  Events events) {
  auto context = std::make_shared<grpc::ClientContext>();
  auto* reactor = new RegisterReactor(context, std::move(events));
  reactor->Begin(stub, hub);
  return std::unique_ptr<RegisterCall>(new RegisterCall(std::move(context)));
}

void RegisterCall::Cancel() {
  context_->TryCancel();
}

}  // namespace baton
