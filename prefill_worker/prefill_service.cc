#include "prefill_worker/prefill_service.h"

#include <grpcpp/server_context.h>

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "common/failpoint.h"
#include "common/span_log.h"
#include "common/status_macros.h"
#include "proto/identity_conversion.h"
#include "proto/status_conversion.h"
#include "worker/call_deadline_service.h"
#include "worker/stream_reactor.h"
#include "worker/token_conversion.h"
#include "worker/transport_setup.h"

namespace baton {
namespace {

using Stream = StreamReactor<v1::PrefillEvent>;

// Writes what a handoff says to one Prefill call.
class StreamObserver final : public PrefillObserver {
 public:
  StreamObserver(std::shared_ptr<Stream::Handle> stream,
                 const v1::PrefillRequest& request,
                 SpanSink* spans)
      : stream_(std::move(stream)),
        logprobs_(request.sequence().has_logprobs()),
        prompt_logprobs_(request.sequence().prompt_logprobs()),
        span_(spans, "prefill.request", request.traceparent()) {
    span_.Add("gen_ai.request.id", request.request_id());
    span_.Add("gen_ai.usage.prompt_tokens", std::int64_t{request.sequence().prompt_size()});
  }

  void OnFirstToken(const FirstToken& first) override {
    v1::PrefillEvent event;
    v1::PrefillEvent::FirstToken& proto = *event.mutable_first_token();
    proto.set_token(first.token.token.value());
    *proto.mutable_queue() = ToProtoDuration(first.queue);
    *proto.mutable_prefill() = ToProtoDuration(first.prefill);
    proto.set_cached_tokens(static_cast<std::uint32_t>(first.cached_tokens));
    const auto seconds = [](Duration time) { return std::chrono::duration<double>(time).count(); };
    span_.Add("gen_ai.latency.time_in_queue", seconds(first.queue));
    span_.Add("gen_ai.latency.time_in_model_prefill", seconds(first.prefill));
    span_.Add("baton.cached_tokens", std::int64_t{first.cached_tokens});
    if (logprobs_) {
      *proto.mutable_logprob() = ToProto(first.token);
    }
    if (prompt_logprobs_) {
      *proto.mutable_prompt_logprobs() = ToProto(first.prompt_logprobs);
    }
    stream_->Send(std::move(event));
  }
  void OnEnd(const absl::Status& status) override {
    span_.End(status);
    stream_->End(status);
  }

 private:
  const std::shared_ptr<Stream::Handle> stream_;
  const bool logprobs_;
  const bool prompt_logprobs_;
  OpenSpan span_;  // of the one event at a time
};

constexpr absl::Duration kLongestShutdown = absl::Seconds(10);

}  // namespace

PrefillService::~PrefillService() {
  StopIntake();
  CancelRest(absl::UnavailableError("this worker is shutting down"));
  absl::MutexLock lock(&mutex_);
  // A cancelled handoff ends by itself, whatever its peer does.
  BATON_CHECK(
      mutex_.AwaitWithTimeout(absl::Condition(this, &PrefillService::IsIdle), kLongestShutdown));
}

grpc::ServerWriteReactor<v1::PrefillEvent>* PrefillService::Prefill(
    grpc::CallbackServerContext* context, const v1::PrefillRequest* request) {
  auto* stream = new Stream();
  const std::shared_ptr<Stream::Handle> handle = stream->handle();
  absl::StatusOr<HandoffTicket> ticket = CheckRequest(*request);
  absl::StatusOr<SequenceRequest> sequence = MakeSequenceRequest(request->sequence());
  absl::StatusOr<std::uint64_t> number = ticket.ok() && sequence.ok() ? Admit() : 0;
  for (const absl::Status& status : {ticket.status(), sequence.status(), number.status()}) {
    if (!status.ok()) {
      handle->End(status);
      return stream;
    }
  }
  // The answer to the handshake; the wait for the engine comes after it.
  v1::PrefillEvent accepted;
  accepted.mutable_accepted()->set_instance_id(std::string(core_.instance().AsBytes()));
  accepted.mutable_accepted()->set_kv_address(core_.transfer().address());
  handle->Send(std::move(accepted));
  if (absl::Status status = HitFailpoint("prefill.kQueued"); !status.ok()) {
    Remove(*number);
    handle->End(status);
    return stream;
  }

  auto handoff = std::make_shared<OutgoingHandoff>(
      core_, *std::move(ticket), std::make_shared<StreamObserver>(handle, *request, core_.spans()));
  {
    absl::MutexLock lock(&mutex_);
    handoffs_[*number] = {.handoff = handoff,
                          .end = [handle](const absl::Status& why) { handle->End(why); }};
  }
  sequence->deadline = DeadlineOf(*context);
  handoff->Begin(*std::move(sequence), [this, number = *number] { Remove(number); });
  stream->OnCancelled(
      [handoff] { handoff->Cancel(absl::CancelledError("the decode worker cancelled")); });
  return stream;
}

absl::StatusOr<HandoffTicket> PrefillService::CheckRequest(
    const v1::PrefillRequest& request) const {
  const std::optional<HandoffId> id = HandoffId::FromBytes(request.handoff_id());
  const std::optional<InstanceId> peer = InstanceId::FromBytes(request.decode_instance_id());
  if (!id.has_value() || !peer.has_value()) {
    return absl::InvalidArgumentError("handoff_id and decode_instance_id must have 16 bytes");
  }
  if (!request.expected_instance_id().empty() &&
      request.expected_instance_id() != core_.instance().AsBytes()) {
    return absl::FailedPreconditionError(
        "expected_instance_id: this worker has been restarted since");
  }
  RETURN_IF_ERROR(core_.CheckZone(request.sequence().zone()));
  ASSIGN_OR_RETURN(const EngineIdentity theirs, FromProto(request.identity()));
  const EngineIdentity& ours = core_.engine().identity();
  if (ours != theirs) {
    return absl::FailedPreconditionError(
        absl::StrCat("identity: the workers would compute different tokens: ",
                     DescribeDifference(ours, theirs)));
  }
  RETURN_IF_ERROR(CheckTransports(
      core_.transport(), {request.kv_transports().begin(), request.kv_transports().end()}));
  return HandoffTicket{.request_id = request.request_id(),
                       .id = *id,
                       .epoch = request.epoch(),
                       .decode_instance = *peer,
                       .first_token_only = request.first_token_only()};
}

absl::StatusOr<std::uint64_t> PrefillService::Admit() {
  RETURN_IF_ERROR(core_.CheckAlive());
  absl::MutexLock lock(&mutex_);
  if (!accepting_) {
    return WithReason(absl::UnavailableError("this worker is shutting down"), "DRAINING");
  }
  const std::uint64_t number = next_number_++;
  handoffs_[number] = {};
  return number;
}

void PrefillService::Remove(std::uint64_t number) {
  absl::MutexLock lock(&mutex_);
  handoffs_.erase(number);
}

void PrefillService::StopIntake() {
  core_.SetDraining();
  absl::MutexLock lock(&mutex_);
  accepting_ = false;
}

std::size_t PrefillService::InFlight() const {
  absl::MutexLock lock(&mutex_);
  return handoffs_.size();
}

void PrefillService::CancelRest(const absl::Status& why) {
  std::vector<std::shared_ptr<OutgoingHandoff>> rest;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [number, call] : handoffs_) {
      if (auto alive = call.handoff.lock()) {
        rest.push_back(std::move(alive));
      }
    }
  }
  for (const auto& handoff : rest) {
    handoff->Cancel(why);
  }
}

void PrefillService::GiveUpCalls(const absl::Status& why) {
  CancelRest(why);
  std::vector<std::function<void(const absl::Status&)>> ends;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [number, call] : handoffs_) {
      if (call.end) {
        ends.push_back(call.end);
      }
    }
  }
  for (const auto& end : ends) {
    end(why);
  }
}

}  // namespace baton
