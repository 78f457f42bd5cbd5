#include "decode_worker/decode_service.h"

#include <grpcpp/server_context.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "worker/call_deadline_service.h"
#include "worker/stream_reactor.h"

namespace baton {
namespace {

using Stream = StreamReactor<v1::GenerateEvent>;

// Writes what a session says to one Generate call.
class StreamObserver final : public GenerationObserver {
 public:
  explicit StreamObserver(std::shared_ptr<Stream::Handle> stream) : stream_(std::move(stream)) {}

  void OnProgress(const GenerationResult& so_far) override {
    v1::GenerateEvent event;
    *event.mutable_progress() = so_far.finished;
    stream_->Send(std::move(event));
  }
  void OnPromptLogprobs(v1::Logprobs logprobs) override {
    v1::GenerateEvent event;
    *event.mutable_prompt_logprobs() = std::move(logprobs);
    stream_->Send(std::move(event));
  }
  void OnToken(GeneratedToken token) override {
    v1::GenerateEvent event;
    event.set_token(token.id.value());
    event.set_choice(token.choice);
    if (token.logprob.has_value()) {
      *event.mutable_logprob() = *std::move(token.logprob);
    }
    stream_->Send(std::move(event));
  }
  void OnChoiceEnd(std::uint32_t choice, v1::FinishReason reason) override {
    v1::GenerateEvent event;
    event.set_choice(choice);
    event.set_choice_end(reason);
    stream_->Send(std::move(event));
  }
  void OnFinished(const GenerationResult& result) override {
    v1::GenerateEvent event;
    *event.mutable_finished() = result.finished;
    stream_->Send(std::move(event));
    stream_->End(absl::OkStatus());
  }
  void OnError(absl::Status status) override { stream_->End(status); }

 private:
  const std::shared_ptr<Stream::Handle> stream_;
};

}  // namespace

grpc::ServerWriteReactor<v1::GenerateEvent>* DecodeService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  auto* stream = new Stream();
  std::shared_ptr<Generation> generation =
      sessions_.Start({.request_id = request->request_id(),
                       .sequence = request->sequence(),
                       .choices = std::max(request->choices(), 1u),
                       .stop = {request->stop().begin(), request->stop().end()},
                       .prefill = {request->prefill().begin(), request->prefill().end()},
                       .forced = request->forced(),
                       .colocate_below_tokens =
                           static_cast<int>(std::min(request->colocate_below_tokens(), 1u << 30)),
                       .deadline = DeadlineOf(*context),
                       .traceparent = request->traceparent()},
                      std::make_shared<StreamObserver>(stream->handle()));
  stream->OnCancelled([generation = std::move(generation)] { generation->Cancel(); });
  return stream;
}

}  // namespace baton
