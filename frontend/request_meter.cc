#include "frontend/request_meter.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "frontend/metric_families.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

// vLLM's bounds, with those of a small model in front where vLLM has none.
const std::vector<double> kFirstTokenBounds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                               0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                               20,    40,    80,   160,  640,  2560};
const std::vector<double> kTokenBounds = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075,
                                          0.1,    0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1,
                                          2.5,    5,     7.5,    10,    20,   40,    80};
const std::vector<double> kRequestBounds = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.3, 0.5, 0.8, 1,   1.5, 2,    2.5,
    5,     10,     15,    20,   30,    40,   50,  60,  120, 240, 480, 960, 1920, 7680};
const std::vector<double> kTransferBounds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
                                             0.01,   0.025,   0.05,   0.1,   0.25,   0.5,
                                             1,      2.5,     5,      10};
const std::vector<double> kSizeBounds = {1,   2,    5,    10,   20,    50,    100,   200,
                                         500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
const std::vector<double> kChoicesBounds = {1, 2, 5, 10, 20};

}  // namespace

RequestTotals::RequestTotals()
    : first_token(kFirstTokenBounds),
      inter_token(kTokenBounds),
      per_output_token(kTokenBounds),
      end_to_end(kRequestBounds),
      queue(kRequestBounds),
      prefill(kRequestBounds),
      decode(kRequestBounds),
      inference(kRequestBounds),
      transfer(kTransferBounds),
      exposed_transfer(kTransferBounds),
      prompt_tokens(kSizeBounds),
      generation_tokens(kSizeBounds),
      choices(kChoicesBounds),
      max_tokens(kSizeBounds) {}

class RequestMeter::Observer final : public GenerationObserver {
 public:
  Observer(const Request& request,
           std::shared_ptr<GenerationObserver> next,
           std::shared_ptr<Shared> shared)
      : request_(request),
        next_(std::move(next)),
        shared_(std::move(shared)),
        choices_(std::max(request.choices, 1u)),
        gaps_(kTokenBounds) {}

  void OnProgress(const GenerationResult& so_far) override { next_->OnProgress(so_far); }
  void OnPromptLogprobs(v1::Logprobs logprobs) override {
    next_->OnPromptLogprobs(std::move(logprobs));
  }
  void OnToken(GeneratedToken token) override {
    Count(token.choice);
    next_->OnToken(std::move(token));
  }
  void OnChoiceEnd(std::uint32_t choice, v1::FinishReason reason) override {
    next_->OnChoiceEnd(choice, reason);
  }
  void OnFinished(const GenerationResult& result) override {
    AddFinished(result);
    next_->OnFinished(result);
  }
  void OnError(absl::Status status) override {
    AddFailed(status);
    next_->OnError(std::move(status));
  }

 private:
  struct Choice {
    TimePoint first;
    TimePoint last;
    std::uint64_t tokens = 0;
  };

  void Count(std::uint32_t number) {
    const TimePoint now = Clock::System().Now();
    if (tokens_++ == 0) {
      first_token_ = now;
      absl::MutexLock lock(&shared_->mutex);
      shared_->totals.first_token.Add(MetricSeconds(now - request_.arrival));
      shared_->totals.prompt_tokens_sum += request_.prompt_tokens;
    }
    last_token_ = now;
    if (number >= choices_.size()) {
      return;  // a fault of the generator's; whoever hears of it next says so
    }
    Choice& choice = choices_[number];
    if (choice.tokens++ == 0) {
      choice.first = now;
    } else {
      gaps_.Add(MetricSeconds(now - choice.last));
    }
    choice.last = now;
  }

  void AddTokens() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex) {
    RequestTotals& totals = shared_->totals;
    totals.inter_token.Merge(gaps_);
    totals.generation_tokens_sum += tokens_;
    for (const Choice& choice : choices_) {
      if (choice.tokens > 1) {
        totals.per_output_token.Add(MetricSeconds(choice.last - choice.first) /
                                    static_cast<double>(choice.tokens - 1));
      }
    }
  }

  void AddFinished(const GenerationResult& result) {
    const v1::GenerateEvent::Finished& finished = result.finished;
    const auto seconds = [](const google::protobuf::Duration& duration) {
      return MetricSeconds(FromProtoDuration(duration));
    };
    const double total = MetricSeconds(Clock::System().Now() - request_.arrival);
    absl::MutexLock lock(&shared_->mutex);
    AddTokens();
    RequestTotals& totals = shared_->totals;
    totals.end_to_end.Add(total);
    totals.queue.Add(seconds(finished.queue()));
    totals.prefill.Add(seconds(finished.prefill()));
    totals.decode.Add(tokens_ > 0 ? MetricSeconds(last_token_ - first_token_) : 0);
    totals.inference.Add(std::max(0.0, total - seconds(finished.queue())));
    totals.prompt_tokens.Add(request_.prompt_tokens);
    totals.generation_tokens.Add(static_cast<double>(tokens_));
    totals.choices.Add(static_cast<double>(choices_.size()));
    totals.max_tokens.Add(request_.max_tokens);
    if (finished.split()) {
      totals.transfer.Add(seconds(finished.transfer()));
      totals.exposed_transfer.Add(seconds(finished.exposed_transfer()));
    }
    totals.prefill_failed += finished.prefill_failed() ? 1 : 0;
    ++(finished.finish_reason() == v1::FINISH_REASON_LENGTH ? totals.full : totals.stopped);
  }

  void AddFailed(const absl::Status& status) {
    absl::MutexLock lock(&shared_->mutex);
    AddTokens();
    const auto code = static_cast<std::size_t>(status.raw_code());
    const auto unknown = static_cast<std::size_t>(absl::StatusCode::kUnknown);
    ++shared_->totals.failed[code < RequestTotals::kCodes ? code : unknown];
  }

  const Request request_;
  const std::shared_ptr<GenerationObserver> next_;
  const std::shared_ptr<Shared> shared_;
  // Of the generation's calls.
  std::vector<Choice> choices_;
  Histogram gaps_;
  std::uint64_t tokens_ = 0;
  TimePoint first_token_;
  TimePoint last_token_;
};

RequestMeter::RequestMeter() : shared_(std::make_shared<Shared>()) {}

std::shared_ptr<GenerationObserver> RequestMeter::Observe(
    const Request& request, std::shared_ptr<GenerationObserver> observer) const {
  return std::make_shared<Observer>(request, std::move(observer), shared_);
}

RequestTotals RequestMeter::totals() const {
  absl::MutexLock lock(&shared_->mutex);
  return shared_->totals;
}

std::shared_ptr<Generation> MeteredGenerator::Start(GenerationJob job,
                                                    std::shared_ptr<GenerationObserver> observer) {
  const RequestMeter::Request request{
      .prompt_tokens = static_cast<std::uint32_t>(job.sequence.prompt_size()),
      .max_tokens = job.sequence.max_tokens(),
      .choices = job.choices,
      .arrival = job.arrival};
  return inner_.Start(std::move(job), meter_.Observe(request, std::move(observer)));
}

void AddRequestMetrics(MetricFamilies& out, const RequestTotals& totals) {
  out.Distribution("vllm:time_to_first_token_seconds", "From the request to its first token.",
                   totals.first_token);
  out.Distribution("vllm:inter_token_latency_seconds", "Between two tokens of a choice.",
                   totals.inter_token);
  out.Distribution("vllm:request_time_per_output_token_seconds",
                   "Mean time between the tokens of a choice.", totals.per_output_token);
  out.Distribution("vllm:e2e_request_latency_seconds", "From the request to its end.",
                   totals.end_to_end);
  out.Distribution("vllm:request_queue_time_seconds", "Time that the request waited.",
                   totals.queue);
  out.Distribution("vllm:request_prefill_time_seconds", "Time of computing the prompt.",
                   totals.prefill);
  out.Distribution("vllm:request_decode_time_seconds", "From the first token to the last.",
                   totals.decode);
  out.Distribution("vllm:request_inference_time_seconds", "All but the wait.", totals.inference);
  out.Distribution("vllm:request_prompt_tokens", "Tokens of the prompt.", totals.prompt_tokens);
  out.Distribution("vllm:request_generation_tokens", "New tokens, of all choices together.",
                   totals.generation_tokens);
  out.Distribution("vllm:request_params_n", "Choices asked for.", totals.choices);
  out.Distribution("vllm:request_params_max_tokens", "Most new tokens of a choice.",
                   totals.max_tokens);
  const std::uint64_t cancelled =
      totals.failed[static_cast<std::size_t>(absl::StatusCode::kCancelled)];
  std::uint64_t failed = 0;
  for (const std::uint64_t count : totals.failed) {
    failed += count;
  }
  out.BeginCounters("vllm:request_success_total", "Requests that have ended, by how.");
  out.Count({{"finished_reason", "stop"}}, static_cast<double>(totals.stopped));
  out.Count({{"finished_reason", "length"}}, static_cast<double>(totals.full));
  out.Count({{"finished_reason", "abort"}}, static_cast<double>(cancelled));
  out.Count({{"finished_reason", "error"}}, static_cast<double>(failed - cancelled));
  out.BeginCounters("baton_request_errors_total", "Requests that did not end well, by code.");
  for (std::size_t code = 1; code < RequestTotals::kCodes; ++code) {
    out.Count({{"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(code))}},
              static_cast<double>(totals.failed[code]));
  }
}

}  // namespace baton
