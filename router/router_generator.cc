#include "router/router_generator.h"

#include <utility>

#include "common/log.h"
#include "router/generate_reactor.h"

namespace baton {
namespace {

// A generation that has ended before it began.
class NoGeneration final : public Generation {
 public:
  void Cancel() override {}
};

v1::GenerateRequest MakeRequest(GenerationJob job, const RouteDecision& decision) {
  v1::GenerateRequest request;
  request.set_request_id(std::move(job.request_id));
  *request.mutable_sequence() = std::move(job.sequence);
  for (const WorkerView& worker : decision.prefill) {
    v1::PrefillCandidate& candidate = *request.add_prefill();
    candidate.set_address(worker.address);
    candidate.set_instance_id(std::string(worker.instance.AsBytes()));
  }
  request.set_forced(job.path == v1::PATH_DISAGGREGATED);
  return request;
}

}  // namespace

RouterGenerator::RouterGenerator(Fleet& fleet, RouteOptions options)
    : fleet_(fleet), options_(options) {}

std::shared_ptr<Generation> RouterGenerator::Start(GenerationJob job,
                                                   std::shared_ptr<GenerationObserver> observer) {
  const TimePoint begin = Clock::System().Now();
  const RouteRequest wish{.prompt_tokens = static_cast<std::size_t>(job.sequence.prompt_size()),
                          .path = job.path};
  const absl::StatusOr<RouteDecision> decision = ChooseRoute(wish, fleet_.View(), options_);
  if (!decision.ok()) {
    observer->OnError(decision.status());
    return std::make_shared<NoGeneration>();
  }
  const std::size_t decode = decision->decode.number;
  GenerateReactor::Options options{
      .worker = decision->decode.address,
      .reason = decision->reason,
      .route = Clock::System().Now() - begin,
      .deadline = job.deadline,
      .on_unreachable = [this, decode] { fleet_.PollDecodeSoon(decode); }};
  options.marks.push_back(fleet_.MarkDecode(decode));
  if (!decision->prefill.empty()) {
    // The decode worker tries them in order, so the first one is taken to have the work.
    options.marks.push_back(fleet_.MarkPrefill(decision->prefill.front().number));
  }
  LogEvent(LogLevel::kDebug, "request.routed",
           {{"request", job.request_id},
            {"decode_worker", decision->decode.address},
            {"prefill_candidates", decision->prefill.size()},
            {"reason", v1::RouteReason_Name(decision->reason)}});
  auto call = std::make_shared<GenerateReactor>(MakeRequest(std::move(job), *decision),
                                                std::move(options), std::move(observer));
  call->Begin(fleet_.decode_client(decode).channel(), call);
  return call;
}

}  // namespace baton
