#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "frontend/generator.h"
#include "frontend/histogram.h"

namespace baton {

class MetricFamilies;

// What the requests of one process add up to since its start. Times in seconds.
struct RequestTotals {
  static constexpr std::size_t kCodes = 17;  // of absl::StatusCode

  RequestTotals();

  Histogram first_token;       // one a request, however many choices it has
  Histogram inter_token;       // between the tokens of one choice; counted when the request ends
  Histogram per_output_token;  // of a choice: from its first token to its last, by those after it
  Histogram end_to_end;
  Histogram queue;  // of those that ended well, as the five after it
  Histogram prefill;
  Histogram decode;
  Histogram inference;  // all but the queue
  Histogram transfer;   // of split ones: first byte to last
  Histogram exposed_transfer;
  Histogram prompt_tokens;
  Histogram generation_tokens;
  Histogram choices;
  Histogram max_tokens;
  std::uint64_t prompt_tokens_sum = 0;      // of those that got a token
  std::uint64_t generation_tokens_sum = 0;  // counted when the request ends
  std::uint64_t stopped = 0;                // ended with reason stop
  std::uint64_t full = 0;                   // with reason length
  std::uint64_t prefill_failed = 0;  // were to be split, and were computed whole after a failure
  std::array<std::uint64_t, kCodes> failed{};  // by code; [0] stays 0
};

// Measures generations from their arrival to their end, as whoever asked for them sees it.
//
// Thread-safe. What it observes may outlive it.
class RequestMeter {
 public:
  // What a request is, as far as it is measured.
  struct Request {
    std::uint32_t prompt_tokens = 0;
    std::uint32_t max_tokens = 0;
    std::uint32_t choices = 1;
    TimePoint arrival = Clock::System().Now();
  };

  RequestMeter();

  // To be given to the generation in place of `observer`, which hears all that it hears.
  std::shared_ptr<GenerationObserver> Observe(const Request& request,
                                              std::shared_ptr<GenerationObserver> observer) const;

  RequestTotals totals() const;

 private:
  class Observer;
  struct Shared {
    mutable absl::Mutex mutex;
    RequestTotals totals ABSL_GUARDED_BY(mutex);
  };

  const std::shared_ptr<Shared> shared_;  // with what is observed
};

// Measures everything that goes to another generator. Thread-safe; both arguments outlive it.
class MeteredGenerator final : public Generator {
 public:
  MeteredGenerator(Generator& inner, const RequestMeter& meter) : inner_(inner), meter_(meter) {}

  std::shared_ptr<Generation> Start(GenerationJob job,
                                    std::shared_ptr<GenerationObserver> observer) override;

 private:
  Generator& inner_;
  const RequestMeter& meter_;
};

// Under vLLM's names, with its buckets and finer ones for small models; errors by code under ours.
// The sums of tokens are left out: an engine counts them itself.
void AddRequestMetrics(MetricFamilies& out, const RequestTotals& totals);

}  // namespace baton
