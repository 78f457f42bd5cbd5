#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "baton/v1/completions.grpc.pb.h"
#include "frontend/drain_target.h"
#include "frontend/generator.h"
#include "model/checkpoint.h"

namespace baton {

class CompletionSession;
class CompletionSink;
class RequestValidator;
class RunningRequests;
class TimerThread;

struct CompletionsOptions {
  // Behaviour.
  std::string model_name;                               // empty: the checkpoint's own name
  std::chrono::milliseconds default_deadline{600'000};  // of a request that brings none
  std::chrono::milliseconds max_deadline{3'600'000};    // a longer one is cut to this
  // Bounds on memory.
  std::size_t max_running_requests = 4096;  // more: RESOURCE_EXHAUSTED at once
  std::size_t max_pending_chunks =
      4096;  // that a slow reader may leave unread in one stream before it is ended
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
  // The session of a request that may run, or why it may not.
  absl::StatusOr<std::shared_ptr<CompletionSession>> Admit(
      const grpc::CallbackServerContext& context,
      const v1::CompleteRequest& request,
      CompletionSink& sink);

  const Checkpoint& checkpoint_;
  Generator& generator_;
  const CompletionsOptions options_;
  const std::unique_ptr<RequestValidator> validator_;
  const std::shared_ptr<RunningRequests>
      running_;  // shared with sessions that a generator may keep longer
  const std::unique_ptr<TimerThread> timer_;
};

}  // namespace baton
