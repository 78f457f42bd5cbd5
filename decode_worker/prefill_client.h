#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/worker.pb.h"
#include "common/clock.h"
#include "proto/tls_credentials.h"

namespace baton {

// Hears of one Prefill call, on gRPC's threads, one at a time: implementations post.
class PrefillCallEvents {
 public:
  virtual ~PrefillCallEvents() = default;
  virtual void OnPrefillEvent(const v1::PrefillEvent& event) = 0;
  // Exactly once, last.
  virtual void OnPrefillEnd(const absl::Status& status) = 0;
};

// A Prefill call under way. Thread-safe. May be let go of at any time, which does not end the call.
class PrefillCall {
 public:
  virtual ~PrefillCall() = default;
  // The end follows soon, with CANCELLED or what was on its way.
  virtual void Cancel() = 0;
};

// Calls prefill workers, over one channel for each address. Thread-safe.
class PrefillClient {
 public:
  // INVALID_ARGUMENT for TLS files that cannot be read.
  static absl::StatusOr<std::unique_ptr<PrefillClient>> Create(const TlsFiles& tls);
  ~PrefillClient();

  // `events` is shared because neither side knows which ends first, the call or the request it was
  // made for.
  std::shared_ptr<PrefillCall> Prefill(const std::string& address,
                                       v1::PrefillRequest request,
                                       TimePoint deadline,
                                       std::shared_ptr<PrefillCallEvents> events);

 private:
  struct Peer;
  struct Credentials;
  explicit PrefillClient(std::unique_ptr<Credentials> credentials);
  std::shared_ptr<Peer> PeerAt(const std::string& address, const std::string& instance);

  const std::unique_ptr<Credentials> credentials_;
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<Peer>> peers_
      ABSL_GUARDED_BY(mutex_);  // shared with open calls
};

}  // namespace baton
