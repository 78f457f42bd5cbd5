#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/worker.pb.h"
#include "common/serial_executor.h"
#include "decode_worker/decode_session.h"
#include "decode_worker/incoming_handoff.h"
#include "decode_worker/prefill_client.h"
#include "frontend/drain_target.h"
#include "frontend/generator.h"
#include "worker/worker_core.h"

namespace baton {

// All requests of one decode worker, whichever door they came through: routed calls and its own
// Completions service.
//
// Thread-safe. Destroyed after the servers that feed it: ends what still runs, and waits until
// engine, transfers and calls have let go of it.
class DecodeSessions final : public DrainTarget {
 public:
  // Borrowed, and outlive the sessions.
  DecodeSessions(WorkerCore& core, PrefillClient& prefill, HandoffTimes times);
  ~DecodeSessions() override;

  // The gRPC address that names this worker in results; known once its server listens.
  void SetAddress(std::string address);
  std::string address() const;

  // Does not block; never null. Refusals come by OnError, before it returns.
  std::shared_ptr<Generation> Start(DecodeJob job, std::shared_ptr<GenerationObserver> observer);

  void StopIntake() override;
  std::size_t InFlight() const override;
  void CancelRest(const absl::Status& why) override;

  // The engine hangs: requests of which nothing has come end now, so that somebody else can serve
  // them; the others wait for it.
  void GiveUpWaiting(const absl::Status& why);

 private:
  std::vector<std::shared_ptr<DecodeSession>> Alive() const;
  void Remove(std::uint64_t number);
  std::shared_ptr<IncomingHandoff> MakeHandoff(HandoffPlan plan,
                                               IncomingHandoff::Listener listener);
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return sessions_.empty() && live_handoffs_ == 0;
  }

  WorkerCore& core_;

  mutable absl::Mutex mutex_;
  std::string address_ ABSL_GUARDED_BY(mutex_);
  bool accepting_ ABSL_GUARDED_BY(mutex_) = true;
  std::uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::uint64_t, std::weak_ptr<DecodeSession>> sessions_
      ABSL_GUARDED_BY(mutex_);
  int live_handoffs_ ABSL_GUARDED_BY(mutex_) =
      0;  // objects, which outlive their session while events are to come

  // Last, so that its thread has ended before anything above goes.
  SerialExecutor executor_;  // of all handoffs
  const HandoffContext handoffs_;
};

// The Generator of a decode worker that clients talk to directly: it has no prefill workers, so
// every path but a forced split is colocated. Thread-safe.
class LocalGenerator final : public Generator {
 public:
  explicit LocalGenerator(DecodeSessions& sessions) : sessions_(sessions) {}
  std::shared_ptr<Generation> Start(GenerationJob job,
                                    std::shared_ptr<GenerationObserver> observer) override;

 private:
  DecodeSessions& sessions_;
};

}  // namespace baton
