#include "router/fleet_service.h"

#include <optional>
#include <utility>
#include <vector>

#include "proto/status_conversion.h"
#include "router/notice_sender.h"

namespace baton {

// One registration. Deletes itself when the call is over.
class RegisterCall final : public grpc::ServerBidiReactor<v1::WorkerReport, v1::RouterNotice> {
 public:
  RegisterCall(FleetService& service, Fleet& fleet)
      : service_(service), fleet_(fleet), sender_(std::make_shared<Sender>(*this)) {
    // Shared with the feed, which may still speak when this has gone.
    feed_ = fleet_.OpenFeed(
        std::nullopt, [sender = sender_](const v1::RouterNotice& notice) { sender->Send(notice); });
    if (!service_.Enter(*this)) {
      End(absl::UnavailableError("router is shutting down"));
      return;
    }
    StartRead(&report_);
  }

  // Any thread; the first reason counts.
  void End(const absl::Status& status) {
    sender_->Close();
    {
      absl::MutexLock lock(&mutex_);
      if (ended_) {
        return;
      }
      ended_ = true;
      end_ = status;
    }
    Finish(ToGrpcStatus(status));
  }

 private:
  using Sender = NoticeSender<RegisterCall>;

  void OnReadDone(bool ok) override {
    if (!ok) {
      End(absl::OkStatus());  // the worker has left
      return;
    }
    const absl::Status status = fleet_.OnReport(feed_, report_);
    if (!status.ok()) {
      End(status);
      return;
    }
    StartRead(&report_);
  }

  void OnWriteDone(bool ok) override { sender_->OnWriteDone(ok); }

  void OnDone() override {
    service_.Leave(*this);
    sender_->Close();
    absl::Status why;
    {
      absl::MutexLock lock(&mutex_);
      why = end_;
    }
    fleet_.CloseFeed(feed_, why.ok() ? absl::UnavailableError("its registration has ended") : why);
    delete this;
  }

  FleetService& service_;
  Fleet& fleet_;
  const std::shared_ptr<Sender> sender_;
  FeedId feed_;
  v1::WorkerReport report_;
  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
};

grpc::ServerBidiReactor<v1::WorkerReport, v1::RouterNotice>* FleetService::Register(
    grpc::CallbackServerContext* /*context*/) {
  return new RegisterCall(*this, fleet_);
}

bool FleetService::Enter(RegisterCall& call) {
  absl::MutexLock lock(&mutex_);
  if (!ending_) {
    calls_.insert(&call);
  }
  return !ending_;
}

void FleetService::Leave(RegisterCall& call) {
  absl::MutexLock lock(&mutex_);
  calls_.erase(&call);
}

void FleetService::EndStreams() {
  absl::MutexLock lock(&mutex_);
  ending_ = true;
  for (RegisterCall* call : calls_) {
    call->End(absl::UnavailableError("router is shutting down"));
  }
}

}  // namespace baton
