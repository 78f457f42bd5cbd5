#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/clock.h"

namespace baton {

enum class ArrivalKind { kPoisson, kFixed, kBursts };

struct ArrivalOptions {
  ArrivalKind kind = ArrivalKind::kPoisson;
  double requests_per_second = 1;  // above 0, on average
  int burst_requests = 8;          // kBursts: that come at the same moment; bursts are Poisson
  std::uint64_t seed = 1;
};

// When `count` requests come, rising, from the start of a run; the first one not before the first
// gap is over. The same options give the same times. Pure; thread-safe.
std::vector<Duration> MakeArrivals(const ArrivalOptions& options, std::size_t count);
// The same, stretched so that `count` requests, and not one more, come before `duration` is over:
// for Poisson ones, what the process looks like given their number. Short runs of one rate are then
// equally loaded. The rate of `options` is not looked at.
std::vector<Duration> MakeArrivalsWithin(const ArrivalOptions& options,
                                         std::size_t count,
                                         Duration duration);

}  // namespace baton
