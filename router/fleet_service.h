#pragma once

#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/worker.grpc.pb.h"
#include "router/fleet.h"

namespace baton {

class RegisterCall;

// Fleet.Register: workers that come by themselves are feeds of the fleet. Thread-safe.
class FleetService final : public v1::Fleet::CallbackService {
 public:
  // `fleet` must outlive the service.
  explicit FleetService(Fleet& fleet) : fleet_(fleet) {}

  grpc::ServerBidiReactor<v1::WorkerReport, v1::RouterNotice>* Register(
      grpc::CallbackServerContext* context) override;

  // Ends every stream with UNAVAILABLE, and new ones at once: the router is about to stop.
  void EndStreams();

 private:
  friend class RegisterCall;
  bool Enter(RegisterCall& call);
  void Leave(RegisterCall& call);

  Fleet& fleet_;
  absl::Mutex mutex_;
  std::set<RegisterCall*> calls_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton
