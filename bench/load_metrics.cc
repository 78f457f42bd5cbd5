#include "bench/load_metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/check.h"

namespace baton {
namespace {

double Milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

constexpr double kGapsWithinLimit = 0.95;

}  // namespace

double Percentile(const std::vector<double>& sorted, double share) {
  BATON_CHECK(!sorted.empty());
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

Distribution Describe(std::vector<double> values) {
  if (values.empty()) {
    return {};
  }
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) {
    squares += (value - mean) * (value - mean);
  }
  return {.count = values.size(),
          .mean = mean,
          .deviation = std::sqrt(squares / count),
          .p50 = Percentile(values, 0.5),
          .p90 = Percentile(values, 0.9),
          .p95 = Percentile(values, 0.95),
          .p99 = Percentile(values, 0.99),
          .max = values.back()};
}

double FirstTokenMs(const RequestRecord& record) {
  return Milliseconds(record.token_times.front() - record.scheduled);
}

double EndMs(const RequestRecord& record) {
  return Milliseconds(record.token_times.back() - record.scheduled);
}

std::vector<double> InterTokenMs(const RequestRecord& record) {
  std::vector<double> gaps;
  for (std::size_t i = 1; i < record.token_times.size(); ++i) {
    gaps.push_back(Milliseconds(record.token_times[i] - record.token_times[i - 1]));
  }
  return gaps;
}

bool KeepsLimits(const RequestRecord& record, const ServiceLimits& limits) {
  if (!record.ok() || FirstTokenMs(record) > limits.first_token_ms) {
    return false;
  }
  std::vector<double> gaps = InterTokenMs(record);
  std::sort(gaps.begin(), gaps.end());
  return gaps.empty() || Percentile(gaps, kGapsWithinLimit) <= limits.inter_token_ms;
}

LoadSummary Summarize(const LoadRun& run, const SummaryOptions& options) {
  LoadSummary summary;
  std::vector<double> first;
  std::vector<double> gaps;
  std::vector<double> per_token;
  std::vector<double> end;
  std::vector<double> lag;
  Duration last_end = options.warm_up;
  for (const RequestRecord& record : run.records) {
    if (record.scheduled < options.warm_up ||
        (!options.kind.empty() && record.kind != options.kind)) {
      continue;
    }
    ++summary.requests;
    last_end = std::max(last_end, record.ended);
    lag.push_back(Milliseconds(record.sent - record.scheduled));
    if (!record.ok()) {
      ++summary.failed;
      ++summary.errors[record.status.ok() ? "no tokens" : std::string(record.status.message())];
      continue;
    }
    summary.good += KeepsLimits(record, options.limits) ? 1 : 0;
    summary.input_tokens += record.prompt_tokens;
    summary.output_tokens += static_cast<double>(record.token_times.size());
    summary.cached_prompt_tokens += record.cached_prompt_tokens;
    first.push_back(FirstTokenMs(record));
    end.push_back(EndMs(record));
    const std::vector<double> own = InterTokenMs(record);
    gaps.insert(gaps.end(), own.begin(), own.end());
    if (!own.empty()) {
      per_token.push_back((end.back() - first.back()) / static_cast<double>(own.size()));
    }
  }
  summary.seconds = std::chrono::duration<double>(last_end - options.warm_up).count();
  summary.first_token_ms = Describe(std::move(first));
  summary.inter_token_ms = Describe(std::move(gaps));
  summary.per_token_ms = Describe(std::move(per_token));
  summary.end_ms = Describe(std::move(end));
  summary.send_lag_ms = Describe(std::move(lag));
  return summary;
}

}  // namespace baton
