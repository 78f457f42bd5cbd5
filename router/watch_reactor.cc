#include "router/watch_reactor.h"

#include <grpcpp/channel.h>

#include <utility>

#include "proto/status_conversion.h"
#include "router/fleet.h"

namespace baton {

WatchReactor::WatchReactor(Fleet& fleet,
                           WorkerSlot worker,
                           const std::shared_ptr<grpc::Channel>& channel)
    : fleet_(fleet), worker_(worker), stub_(v1::Worker::NewStub(channel)) {}

void WatchReactor::Begin() {
  self_ = shared_from_this();
  feed_ = fleet_.OpenFeed(worker_, [weak = weak_from_this()](const v1::RouterNotice& notice) {
    if (const std::shared_ptr<WatchReactor> call = weak.lock()) {
      call->sender_.Send(notice);
    }
  });
  stub_->async()->Watch(&context_, this);
  AddHold();  // for notices, which come at any time until the last read
  StartRead(&report_);
  StartCall();
}

void WatchReactor::OnReadDone(bool ok) {
  if (ok) {
    refused_ = fleet_.OnReport(feed_, report_);
    if (refused_.ok()) {
      StartRead(&report_);
      return;
    }
    context_.TryCancel();
  }
  sender_.Close();
  RemoveHold();
}

void WatchReactor::OnDone(const grpc::Status& status) {
  const std::shared_ptr<WatchReactor> last = std::move(self_);
  fleet_.CloseFeed(feed_, refused_.ok() ? FromGrpcStatus(status) : refused_);
}

}  // namespace baton
