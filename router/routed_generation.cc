#include "router/routed_generation.h"

#include <algorithm>
#include <utility>

#include "common/failpoint.h"
#include "common/log.h"
#include "router/generate_reactor.h"

namespace baton {
namespace {

// A second attempt saves a request from one dead worker; more of them would multiply the load of a
// sick fleet.
constexpr std::size_t kMostAttempts = 2;

}  // namespace

RoutedGeneration::RoutedGeneration(Fleet& fleet,
                                   const PlainRouteOptions& options,
                                   GenerationJob job,
                                   std::shared_ptr<GenerationObserver> observer)
    : fleet_(fleet), options_(options), job_(std::move(job)), observer_(std::move(observer)) {}

void RoutedGeneration::Begin() {
  absl::Status status = HitFailpoint("router.admitted");
  if (status.ok()) {
    status = Try();
  }
  if (!status.ok()) {
    std::exchange(observer_, nullptr)->OnError(std::move(status));
  }
}

void RoutedGeneration::Cancel() {
  std::shared_ptr<Generation> attempt;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    attempt = attempt_;
  }
  if (attempt != nullptr) {
    attempt->Cancel();
  }
}

bool RoutedGeneration::cancelled() const {
  absl::MutexLock lock(&mutex_);
  return cancelled_;
}

void RoutedGeneration::OnProgress(const GenerationResult& so_far) {
  observer_->OnProgress(so_far);
}

void RoutedGeneration::OnPromptLogprobs(v1::Logprobs logprobs) {
  seen_ = true;
  observer_->OnPromptLogprobs(std::move(logprobs));
}

void RoutedGeneration::OnToken(GeneratedToken token) {
  seen_ = true;
  observer_->OnToken(std::move(token));
}

void RoutedGeneration::OnChoiceEnd(std::uint32_t choice, v1::FinishReason reason) {
  observer_->OnChoiceEnd(choice, reason);
}

void RoutedGeneration::OnFinished(const GenerationResult& result) {
  std::exchange(observer_, nullptr)->OnFinished(result);
}

void RoutedGeneration::OnError(absl::Status status) {
  const bool again = status.code() == absl::StatusCode::kUnavailable && !seen_ && !cancelled() &&
                     tried_.size() < kMostAttempts;
  if (again && Try().ok()) {
    LogEvent(LogLevel::kWarn, "request.rerouted",
             {{"request", job_.request_id}, {"why", std::string(status.message())}});
    return;
  }
  std::exchange(observer_, nullptr)->OnError(std::move(status));
}

absl::Status RoutedGeneration::Try() {
  const TimePoint begin = Clock::System().Now();
  FleetView view = fleet_.View();
  std::erase_if(view.decode, [this](const WorkerView& worker) {
    return std::find(tried_.begin(), tried_.end(), worker.number) != tried_.end();
  });
  const PlainRouteRequest wish{
      .prompt_tokens = static_cast<std::size_t>(job_.sequence.prompt_size()), .path = job_.path};
  absl::StatusOr<PlainRouteDecision> decision = ChooseRoute(wish, view, options_);
  if (!decision.ok()) {
    return decision.status();
  }
  route_ += Clock::System().Now() - begin;
  const std::size_t decode = decision->decode.number;
  tried_.push_back(decode);
  GenerateReactor::Options options{
      .worker = decision->decode.address,
      .reason = decision->reason,
      .route = route_,
      .deadline = job_.deadline,
      .on_unreachable = [this, decode] { fleet_.PollDecodeSoon(decode); }};
  for (std::uint32_t i = 0; i < job_.choices; ++i) {
    options.marks.push_back(fleet_.MarkDecode(decode));
  }
  if (!decision->prefill.empty()) {
    // The decode worker tries them in order, so the first one is taken to have the work.
    options.marks.push_back(fleet_.MarkPrefill(decision->prefill.front().number));
  }
  LogEvent(LogLevel::kDebug, "request.routed",
           {{"request", job_.request_id},
            {"decode_worker", decision->decode.address},
            {"prefill_candidates", decision->prefill.size()},
            {"reason", v1::RouteReason_Name(decision->reason)}});
  auto call = std::make_shared<GenerateReactor>(MakeRequest(*decision), std::move(options),
                                                shared_from_this());
  bool cancel = false;
  {
    absl::MutexLock lock(&mutex_);
    attempt_ = call;
    cancel = cancelled_;
  }
  call->Begin(fleet_.decode_client(decode).channel(), call);
  if (cancel) {
    call->Cancel();
  }
  return absl::OkStatus();
}

v1::GenerateRequest RoutedGeneration::MakeRequest(const PlainRouteDecision& decision) const {
  v1::GenerateRequest request;
  request.set_request_id(job_.request_id);
  *request.mutable_sequence() = job_.sequence;
  for (const WorkerView& worker : decision.prefill) {
    v1::PrefillCandidate& candidate = *request.add_prefill();
    candidate.set_address(worker.address);
    candidate.set_instance_id(std::string(worker.instance.AsBytes()));
  }
  request.set_choices(job_.choices);
  for (const std::string& stop : job_.stop) {
    request.add_stop(stop);
  }
  request.set_forced(job_.path == v1::PATH_DISAGGREGATED);
  request.set_colocate_below_tokens(static_cast<std::uint32_t>(options_.colocate_below_tokens));
  return request;
}

}  // namespace baton
