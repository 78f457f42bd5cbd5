#include "router/routed_generation.h"

#include <chrono>
#include <utility>

#include "common/failpoint.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "router/generate_reactor.h"

namespace baton {
namespace {

// A second attempt saves a request from one dead worker; more of them would multiply the load of a
// sick fleet.
constexpr std::size_t kMostAttempts = 2;

void AvoidForNow(WorkerCounts& counts) {
  constexpr std::chrono::milliseconds kAvoided{1000};
  counts.avoid_until.store(Clock::System().Now() + kAvoided, std::memory_order_relaxed);
}

}  // namespace

RoutedGeneration::RoutedGeneration(const RoutingParts& parts,
                                   GenerationJob job,
                                   std::shared_ptr<GenerationObserver> observer)
    : parts_(parts), job_(std::move(job)), observer_(std::move(observer)) {
  if (job_.sequence.prompt_logprobs()) {
    return;  // all of the prompt is computed, whatever is cached: no worker is nearer to it
  }
  const PrefixHash root = RootHash({.model_fingerprint = parts.model_fingerprint,
                                    .tokenizer_fingerprint = parts.tokenizer_fingerprint,
                                    .cache_salt = job_.sequence.cache_salt(),
                                    .zone = job_.sequence.zone()});
  std::vector<TokenId> tokens(job_.sequence.prompt().begin(), job_.sequence.prompt().end());
  hashes_ = HashBlocks(root, tokens);
}

void RoutedGeneration::Begin() {
  parts_.retries.OnRequest();
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
  if (!std::exchange(seen_, true)) {
    for (LoadMark& mark : route_.marks) {
      mark.EndPrefill();
    }
  }
  observer_->OnToken(std::move(token));
}

void RoutedGeneration::OnChoiceEnd(std::uint32_t choice, v1::FinishReason reason) {
  observer_->OnChoiceEnd(choice, reason);
}

void RoutedGeneration::OnFinished(const GenerationResult& result) {
  NotePair(result.finished);
  route_.marks.clear();
  std::exchange(observer_, nullptr)->OnFinished(result);
}

void RoutedGeneration::NotePair(const v1::GenerateEvent::Finished& finished) {
  if (route_.prefill.empty()) {
    return;
  }
  const UsableWorker& prefill = *route_.prefill.front();
  const PairHealth::Pair pair{{route_.decode->slot, route_.decode->instance},
                              {prefill.slot, prefill.instance}};
  if (finished.prefill_failed()) {
    parts_.chooser.pairs().NoteFailure(pair);
  } else if (finished.split() && finished.prefill_worker() == prefill.address) {
    parts_.chooser.pairs().NoteSuccess(pair);
  }
}

void RoutedGeneration::OnError(absl::Status status) {
  route_.marks.clear();
  const bool again = status.code() == absl::StatusCode::kUnavailable && !seen_ && !cancelled() &&
                     tried_.size() < kMostAttempts && parts_.retries.TryRetry();
  if (again && Try().ok()) {
    LogEvent(LogLevel::kWarn, "request.rerouted",
             {{"request", job_.request_id}, {"why", std::string(status.message())}});
    return;
  }
  std::exchange(observer_, nullptr)->OnError(std::move(status));
}

absl::Status RoutedGeneration::Try() {
  const TimePoint begin = Clock::System().Now();
  const RouteQuery query{.hashes = hashes_,
                         .prompt_tokens = static_cast<std::size_t>(job_.sequence.prompt_size()),
                         .path = job_.path,
                         .session = job_.session,
                         .zone = job_.sequence.zone(),
                         .choices = job_.choices,
                         .tried = tried_};
  ASSIGN_OR_RETURN(route_, parts_.chooser.Choose(query));
  const Duration took = Clock::System().Now() - begin;
  parts_.metrics.OnDecision(took, route_.cached_tokens / kBlockTokens);
  choosing_ += took;
  tried_.push_back(route_.decode->slot);
  GenerateReactor::Options options{
      .worker = route_.decode->address,
      .tls = route_.decode->tls,
      .reason = route_.reason,
      .route = choosing_,
      .deadline = job_.deadline,
      .on_unreachable = [counts = route_.decode->counts] { AvoidForNow(*counts); }};
  LogEvent(LogLevel::kDebug, "request.routed",
           {{"request", job_.request_id},
            {"decode_worker", route_.decode->address},
            {"prefill_candidates", route_.prefill.size()},
            {"cached_tokens", route_.cached_tokens},
            {"reason", v1::RouteReason_Name(route_.reason)}});
  auto call =
      std::make_shared<GenerateReactor>(MakeRequest(), std::move(options), shared_from_this());
  const std::shared_ptr<grpc::Channel> channel = route_.decode->channel;
  bool cancel = false;
  {
    absl::MutexLock lock(&mutex_);
    attempt_ = call;
    cancel = cancelled_;
  }
  call->Begin(channel, call);
  if (cancel) {
    call->Cancel();
  }
  return absl::OkStatus();
}

v1::GenerateRequest RoutedGeneration::MakeRequest() const {
  v1::GenerateRequest request;
  request.set_request_id(job_.request_id);
  *request.mutable_sequence() = job_.sequence;
  for (const std::shared_ptr<const UsableWorker>& worker : route_.prefill) {
    v1::PrefillCandidate& candidate = *request.add_prefill();
    candidate.set_address(worker->address);
    candidate.set_instance_id(std::string(worker->instance.AsBytes()));
  }
  request.set_choices(job_.choices);
  for (const std::string& stop : job_.stop) {
    request.add_stop(stop);
  }
  request.set_forced(job_.path == v1::PATH_DISAGGREGATED);
  request.set_colocate_below_tokens(
      static_cast<std::uint32_t>(parts_.chooser.colocate_below_tokens()));
  request.set_traceparent(job_.traceparent);
  return request;
}

}  // namespace baton
