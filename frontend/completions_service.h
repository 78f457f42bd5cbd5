#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "baton/v1/completions.grpc.pb.h"
#include "common/span_log.h"
#include "frontend/calling_client.h"
#include "frontend/drain_target.h"
#include "frontend/generator.h"
#include "frontend/request_validation.h"
#include "model/checkpoint.h"

namespace baton {

class CompletionSession;
class CompletionSink;
class RunningRequests;
class TimerThread;
class WorkThread;

struct CompletionsOptions {
  std::string model_name;  // empty: the checkpoint's own name
  ZoneRules zones;
  SpanSink* spans = nullptr;  // hears of every request; null: nobody. Outlives the requests
  std::string_view span_name = "request";  // of these spans; a literal
  // Behaviour.
  std::chrono::milliseconds default_deadline{600'000};  // of a request that brings none
  std::chrono::milliseconds max_deadline{3'600'000};    // a longer one is cut to this
  // Bounds on memory; what goes beyond is RESOURCE_EXHAUSTED at once.
  std::size_t max_running_requests = 4096;
  std::size_t max_long_prompts = 64;      // that wait to be tokenized
  std::size_t max_pending_chunks = 4096;  // that a slow reader may leave unread in one stream
};

// baton.v1.Completions over any Generator: validation, tokenization, text with stop strings,
// deadlines, cancellation, usage and time line. Served by the router and, for direct use, by the
// decode worker.
//
// Ends of a request: OK; INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS for a bad request; CANCELLED
// by the client or by Abort; DEADLINE_EXCEEDED; RESOURCE_EXHAUSTED for too many requests or for a
// client that does not read; UNAVAILABLE while shutting down; else what the generator says. A
// client that leaves cancels its generation at once.
//
// Thread-safe. Must outlive the gRPC server that serves it.
class CompletionsService final : public v1::Completions::CallbackService, public DrainTarget {
 public:
  // `checkpoint` and `generator` must outlive the service; of the checkpoint only tokenizer, chat
  // format and config are used.
  CompletionsService(const Checkpoint& checkpoint,
                     Generator& generator,
                     CompletionsOptions options);
  ~CompletionsService() override;

  void StopIntake() override;
  std::size_t InFlight() const override;
  void CancelRest(const absl::Status& why) override;

  // Finished requests by "path/reason" when they succeeded ("colocated/SHORT_PROMPT"), else by the
  // status code's name.
  std::map<std::string, std::uint64_t> FinishedRequests() const;

  grpc::ServerUnaryReactor* Complete(grpc::CallbackServerContext* context,
                                     const v1::CompleteRequest* request,
                                     v1::CompleteResponse* response) override;
  grpc::ServerWriteReactor<v1::CompleteChunk>* StreamComplete(
      grpc::CallbackServerContext* context, const v1::CompleteRequest* request) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request,
                                  google::protobuf::Empty* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  // The bytes of the tokens one after another: what Tokenize took apart comes back byte for byte,
  // and the bytes of half a character stay as they are.
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;

 private:
  // When a request came and when it must end.
  struct Arrival {
    TimePoint when;
    TimePoint deadline;
  };

  // Begins the call of `reactor`: at once, or when its prompt is long to tokenize on `long_work_`.
  template <typename Reactor>
  Reactor* Launch(Reactor* reactor,
                  const grpc::CallbackServerContext& context,
                  const v1::CompleteRequest& request);
  // The session of a request that may run, or why it may not.
  absl::StatusOr<std::shared_ptr<CompletionSession>> Admit(const v1::CompleteRequest& request,
                                                           const Arrival& arrival,
                                                           const Caller& caller,
                                                           CompletionSink& sink);
  absl::Status TokenizeNow(const v1::TokenizeRequest& request,
                           v1::TokenizeResponse& response) const;
  absl::Status DetokenizeNow(const v1::DetokenizeRequest& request,
                             v1::DetokenizeResponse& response) const;
  // Runs `work` here when so many bytes of text are quickly done, else on `long_work_`.
  // RESOURCE_EXHAUSTED, and `work` does not run, when too much waits there.
  absl::Status RunOrPost(std::size_t bytes, std::function<void()> work);

  const Checkpoint& checkpoint_;
  Generator& generator_;
  const CompletionsOptions options_;
  const std::unique_ptr<RequestValidator> validator_;
  // Shared with sessions, which a generator may keep a little longer than its calls.
  const std::shared_ptr<RunningRequests> running_;
  const std::unique_ptr<TimerThread> timer_;
  const std::unique_ptr<WorkThread> long_work_;
};

}  // namespace baton
