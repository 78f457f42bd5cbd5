#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "bench/load_request.h"

namespace baton {

// Of a list of values; all 0 of an empty one. Percentiles are interpolated between neighbours, as
// numpy's default does.
struct Distribution {
  std::size_t count = 0;
  double mean = 0;
  double deviation = 0;  // standard deviation of the values themselves
  double p50 = 0;
  double p90 = 0;
  double p95 = 0;
  double p99 = 0;
  double max = 0;
};

// `sorted` is not empty and rises; `share` is in [0, 1].
double Percentile(const std::vector<double>& sorted, double share);
Distribution Describe(std::vector<double> values);

// What a request is to keep to be counted as good.
struct ServiceLimits {
  double first_token_ms = 1000;
  double inter_token_ms = 60;  // for 95% of the request's own gaps
};

// Milliseconds of one answered request, all from the moment it was due.
double FirstTokenMs(const RequestRecord& record);
double EndMs(const RequestRecord& record);  // to the last token
// Between tokens; of tokens that came in one message all but the first gap are 0.
std::vector<double> InterTokenMs(const RequestRecord& record);
bool KeepsLimits(const RequestRecord& record, const ServiceLimits& limits);

struct SummaryOptions {
  Duration warm_up{};  // requests due before are left out
  std::string kind;    // only these; empty: all
  ServiceLimits limits;
};

// A run in numbers. Rates are by the time from the end of the warm-up to the last end.
struct LoadSummary {
  std::size_t requests = 0;
  std::size_t failed = 0;
  std::size_t good = 0;  // kept both limits
  double seconds = 0;
  double input_tokens = 0;   // of those answered
  double output_tokens = 0;  // of those answered
  double cached_prompt_tokens = 0;
  Distribution first_token_ms;
  Distribution inter_token_ms;  // every gap of every request
  Distribution per_token_ms;    // (end - first token) / (tokens - 1), of requests with two or more
  Distribution end_ms;
  Distribution send_lag_ms;  // how late the generator was
  std::map<std::string, std::size_t> errors;

  std::size_t completed() const { return requests - failed; }
  // Of all requests, the failed ones included; 0 of none.
  double good_share() const {
    return requests == 0 ? 0 : static_cast<double>(good) / static_cast<double>(requests);
  }
  double per_second(double count) const { return seconds > 0 ? count / seconds : 0; }
};

LoadSummary Summarize(const LoadRun& run, const SummaryOptions& options);

}  // namespace baton
