#pragma once

#include <grpcpp/support/client_callback.h>

#include <memory>

#include "baton/v1/worker.grpc.pb.h"
#include "router/notice_sender.h"
#include "router/worker_kv.h"

namespace baton {

class Fleet;

// One Worker.Watch call: the reports of a worker of the static list, as a feed of the fleet.
//
// Keeps itself alive from Begin until gRPC is done with it. Cancel and Notify are thread-safe.
class WatchReactor final : public grpc::ClientBidiReactor<v1::RouterNotice, v1::WorkerReport>,
                           public std::enable_shared_from_this<WatchReactor> {
 public:
  // `fleet` must outlive the call.
  WatchReactor(Fleet& fleet, WorkerSlot worker, const std::shared_ptr<grpc::Channel>& channel);

  void Begin();
  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override { sender_.OnWriteDone(ok); }
  void OnDone(const grpc::Status& status) override;

  Fleet& fleet_;
  const WorkerSlot worker_;
  const std::unique_ptr<v1::Worker::Stub> stub_;
  grpc::ClientContext context_;
  NoticeSender<WatchReactor> sender_{*this};
  v1::WorkerReport report_;
  FeedId feed_;
  absl::Status refused_;                // by the fleet
  std::shared_ptr<WatchReactor> self_;  // null before Begin and after OnDone
};

}  // namespace baton
