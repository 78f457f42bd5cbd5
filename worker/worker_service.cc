#include "worker/worker_service.h"

#include <grpcpp/server_context.h>

#include <memory>

#include "common/log.h"

namespace baton {
namespace {

// The reports of this worker on a stream that a router has opened. Deletes itself when the call is
// over.
class WatchReactor final : public grpc::ServerBidiReactor<v1::RouterNotice, v1::WorkerReport>,
                           public ReportCall {
 public:
  WatchReactor(ReportHub& hub, std::string peer)
      : peer_(std::move(peer)), stream_(hub.Open(*this)) {
    StartRead(&notice_);
  }

 private:
  void StartReport(const v1::WorkerReport& report) override { StartWrite(&report); }
  void OnStreamEnd() override { Finish(grpc::Status::OK); }

  void OnWriteDone(bool) override { stream_->OnWritten(); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      stream_->End();
      return;
    }
    if (notice_.has_resync()) {
      stream_->AskSnapshot();
    } else if (notice_.has_refused() && notice_.refused() != refused_) {
      refused_ = notice_.refused();
      LogEvent(LogLevel::kWarn, "router.refused", {{"router", peer_}, {"why", refused_}});
    }
    StartRead(&notice_);
  }

  void OnCancel() override { stream_->End(); }
  void OnDone() override { delete this; }

  const std::string peer_;
  v1::RouterNotice notice_;
  std::string refused_;  // by the last notice that did
  // The hub may begin to write before the constructor has returned.
  const std::shared_ptr<ReportStream> stream_;
};

}  // namespace

grpc::ServerUnaryReactor* WorkerService::Describe(grpc::CallbackServerContext* context,
                                                  const v1::DescribeRequest*,
                                                  v1::WorkerDescription* response) {
  *response = core_.Describe();
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerBidiReactor<v1::RouterNotice, v1::WorkerReport>* WorkerService::Watch(
    grpc::CallbackServerContext* context) {
  return new WatchReactor(core_.reports(), context->peer());
}

}  // namespace baton
