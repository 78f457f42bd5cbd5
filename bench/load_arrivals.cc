#include "bench/load_arrivals.h"

#include <chrono>
#include <cmath>
#include <random>

#include "common/check.h"

namespace baton {
namespace {

// (0, 1], in steps of 2^-53; the same on every library, which std::exponential_distribution is not.
double Uniform(std::mt19937_64& generator) {
  return (static_cast<double>(generator() >> 11) + 1) * 0x1p-53;
}

}  // namespace

std::vector<Duration> MakeArrivals(const ArrivalOptions& options, std::size_t count) {
  BATON_CHECK(options.requests_per_second > 0 && options.burst_requests >= 1);
  std::mt19937_64 generator(options.seed);
  const int group = options.kind == ArrivalKind::kBursts ? options.burst_requests : 1;
  const double mean_gap = group / options.requests_per_second;
  std::vector<Duration> arrivals;
  arrivals.reserve(count);
  double seconds = 0;
  while (arrivals.size() < count) {
    seconds +=
        options.kind == ArrivalKind::kFixed ? mean_gap : -std::log(Uniform(generator)) * mean_gap;
    const auto when = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
    for (int i = 0; i < group && arrivals.size() < count; ++i) {
      arrivals.push_back(when);
    }
  }
  return arrivals;
}

std::vector<Duration> MakeArrivalsWithin(const ArrivalOptions& options,
                                         std::size_t count,
                                         Duration duration) {
  const auto group =
      static_cast<std::size_t>(options.kind == ArrivalKind::kBursts ? options.burst_requests : 1);
  const std::size_t next = (count + group - 1) / group * group;  // the first that comes too late
  std::vector<Duration> arrivals = MakeArrivals(options, next + 1);
  const double stretch =
      std::chrono::duration<double>(duration) / std::chrono::duration<double>(arrivals.back());
  arrivals.resize(count);
  for (Duration& arrival : arrivals) {
    arrival = std::chrono::duration_cast<Duration>(
        stretch * std::chrono::duration<double, std::nano>(arrival));
  }
  return arrivals;
}

}  // namespace baton
