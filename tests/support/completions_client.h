#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/completions.grpc.pb.h"
#include "common/clock.h"
#include "proto/tls_credentials.h"
#include "tests/support/patience.h"
#include "tests/support/prompts.h"

namespace baton {

// A channel that notices within a fraction of a second that a server is back. `tls`: what it shows
// and trusts; empty: plain text.
std::shared_ptr<grpc::Channel> MakeTestChannel(const std::string& address,
                                               const TlsFiles& tls = {});

// One StreamComplete call under way, read by a thread of its own. Cancelled and joined by the
// destructor. Thread-safe.
class StreamedCompletion {
 public:
  StreamedCompletion(std::shared_ptr<grpc::Channel> channel,
                     v1::CompleteRequest request,
                     Duration timeout);
  ~StreamedCompletion();
  StreamedCompletion(const StreamedCompletion&) = delete;
  StreamedCompletion& operator=(const StreamedCompletion&) = delete;

  void Cancel();

  // False when the call ends first, or after `patience`.
  bool WaitForTokens(std::size_t count, Duration patience = kPatience);
  // nullopt when it is still under way after `patience`.
  std::optional<absl::Status> WaitForEnd(Duration patience = kPatience);

  Tokens tokens() const;
  // Of the last chunk; empty before.
  v1::Timeline timeline() const;
  // When something of it last came: a token or the end.
  TimePoint last_event() const;

 private:
  void Run();

  const std::unique_ptr<v1::Completions::Stub> stub_;
  const v1::CompleteRequest request_;
  grpc::ClientContext context_;
  mutable absl::Mutex mutex_;
  Tokens tokens_ ABSL_GUARDED_BY(mutex_);
  v1::Timeline timeline_ ABSL_GUARDED_BY(mutex_);
  TimePoint last_event_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  std::jthread thread_;  // last: it uses all of the above
};

// Calls baton.v1.Completions at one address. Thread-safe.
class CompletionsClient {
 public:
  explicit CompletionsClient(const std::string& address, const TlsFiles& tls = {})
      : channel_(MakeTestChannel(address, tls)) {}

  absl::StatusOr<v1::CompleteResponse> Complete(const v1::CompleteRequest& request,
                                                Duration timeout = kPatience) const;
  std::unique_ptr<StreamedCompletion> Stream(v1::CompleteRequest request,
                                             Duration timeout = kPatience) const;
  absl::Status Abort(const std::string& request_id) const;
  // Of the health service, for the whole server: SERVING.
  bool IsServing() const;

  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  const std::shared_ptr<grpc::Channel> channel_;  // shared with calls, which may outlive the client
};

// The tokens of the only choice.
Tokens TokensOf(const v1::CompleteResponse& response);

}  // namespace baton
