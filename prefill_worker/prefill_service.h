#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/worker.grpc.pb.h"
#include "frontend/drain_target.h"
#include "prefill_worker/outgoing_handoff.h"
#include "worker/worker_core.h"

namespace baton {

// baton.v1.PrefillWorker over a WorkerCore, which must outlive it. Refuses with FAILED_PRECONDITION
// a decode worker that would compute other tokens, and a caller that means an earlier process on
// this address.
//
// Thread-safe. Destroyed after its server: ends what still runs and waits until engine and
// transfers have let go of it.
class PrefillService final : public v1::PrefillWorker::CallbackService, public DrainTarget {
 public:
  explicit PrefillService(WorkerCore& core) : core_(core) {}
  ~PrefillService() override;

  grpc::ServerWriteReactor<v1::PrefillEvent>* Prefill(grpc::CallbackServerContext* context,
                                                      const v1::PrefillRequest* request) override;

  void StopIntake() override;
  std::size_t InFlight() const override;
  void CancelRest(const absl::Status& why) override;

  // The engine hangs: ends every call now, whenever the engine gets to its sequence, so that the
  // decode workers go on without it.
  void GiveUpCalls(const absl::Status& why);

 private:
  struct Call {
    std::weak_ptr<OutgoingHandoff> handoff;        // null at first
    std::function<void(const absl::Status&)> end;  // the stream's, harmless when it has ended
  };

  absl::StatusOr<HandoffTicket> CheckRequest(const v1::PrefillRequest& request) const;
  // UNAVAILABLE while draining.
  absl::StatusOr<std::uint64_t> Admit();
  void Remove(std::uint64_t number);
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return handoffs_.empty(); }

  WorkerCore& core_;
  mutable absl::Mutex mutex_;
  bool accepting_ ABSL_GUARDED_BY(mutex_) = true;
  std::uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::uint64_t, Call> handoffs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton
