#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/worker.pb.h"
#include "common/clock.h"
#include "common/sha256.h"
#include "proto/tls_credentials.h"
#include "router/fleet_view.h"
#include "router/worker_client.h"

namespace baton {

struct FleetOptions {
  std::vector<std::string> decode;   // host:port
  std::vector<std::string> prefill;  // host:port
  TlsFiles tls;
  // Of the router's own model. A worker with another one is refused: it would get tokens that it
  // does not know.
  Digest model_fingerprint{};
  Digest tokenizer_fingerprint{};
  std::chrono::milliseconds poll_interval{200};
  std::chrono::milliseconds dead_after{1000};  // without an answer; also the deadline of a poll
};

// Requests of this router at one worker. Shared with the calls it counts, which may end after the
// fleet. Thread-safe.
struct WorkerCounts {
  std::atomic<std::uint64_t> in_flight{0};
  std::atomic<std::uint64_t> dispatched{0};
};

// Counts one request at one worker while it lives. Move-only.
class LoadMark {
 public:
  LoadMark() = default;
  explicit LoadMark(std::shared_ptr<WorkerCounts> load);
  ~LoadMark();
  LoadMark(LoadMark&& other) noexcept = default;
  LoadMark& operator=(LoadMark&& other) noexcept;

 private:
  std::shared_ptr<WorkerCounts> load_;
};

// The workers of a static list: polls each of them, and knows which may get requests and why the
// others may not.
//
// A worker is alive while its last answer is young and its connection stands. Alive is not enough:
// its role, model and tokenizer must be right, and it must not be draining. One thread starts the
// polls; answers come on gRPC's threads.
//
// Thread-safe; Start is called once.
class Fleet {
 public:
  static absl::StatusOr<std::unique_ptr<Fleet>> Create(FleetOptions options);
  // Waits for polls under way.
  ~Fleet();

  // Begins to poll. `can_serve` is called on the fleet's thread, first at once and then on every
  // change of whether some decode worker may get requests. It is not true before every worker of
  // the list has been asked once, so that the first long prompt finds the prefill workers.
  void Start(std::function<void(bool)> can_serve);
  // Begins no more polls; after it `can_serve` is not called any more. Any number of times, not
  // from `can_serve`.
  void Stop();

  FleetView View() const;
  // What `baton status` shows: decode workers first, each in the order of the list.
  std::vector<v1::WorkerStatus> Status() const;

  // The channel of a worker of the view.
  WorkerClient& decode_client(std::size_t number) const;
  LoadMark MarkDecode(std::size_t number) const;
  LoadMark MarkPrefill(std::size_t number) const;
  // A request has found this decode worker unreachable: ask it at once.
  void PollDecodeSoon(std::size_t number);

 private:
  struct Worker;

  explicit Fleet(FleetOptions options);

  void Run();
  std::vector<Worker*> TakeDue(TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  TimePoint NextEvent() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnAnswer(Worker& worker, absl::StatusOr<v1::WorkerDescription> answer);
  void Accept(Worker& worker, v1::WorkerDescription description)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string FindProblem(const Worker& worker, const v1::WorkerDescription& description) const;
  void UpdateLiveness(TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool CanServe() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const FleetOptions options_;
  std::vector<std::unique_ptr<Worker>>
      decode_;  // fixed after Create; what is in a worker is guarded by mutex_
  std::vector<std::unique_ptr<Worker>> prefill_;  // likewise

  mutable absl::Mutex mutex_;
  std::function<void(bool)> can_serve_changed_;  // set before the thread begins
  bool news_ ABSL_GUARDED_BY(mutex_) = false;    // something for the thread to look at
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int polls_under_way_ ABSL_GUARDED_BY(mutex_) = 0;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace baton
