#include "planner/regions.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "planner/field_check.h"
#include "planner/python_random.h"

namespace baton {
namespace {

constexpr double kCalibratedTokens = 2048;
constexpr double kHitMs = 80;
constexpr double kMissMs = 800;
constexpr std::array<const char*, kRegions> kRegionNames = {"us-east-1", "us-west-2", "eu-west-1"};
constexpr double kRoundTripMs[kRegions][kRegions] = {{0, 65, 75}, {65, 0, 130}, {75, 130, 0}};

struct Replica {
  int region = 0;
  int queue_depth = 0;
  PrefixSlots cache;
};

absl::Status Validate(const RegionConfig& config) {
  RETURN_IF_ERROR(CheckRange("slots", config.slots, 1, 1e6));
  RETURN_IF_ERROR(CheckRange("replicas_per_region", config.replicas_per_region, 1, 1000));
  RETURN_IF_ERROR(CheckRange("prefixes", config.prefixes, 1, 1e6));
  RETURN_IF_ERROR(CheckRange("requests", config.requests, 1, 1e7));
  RETURN_IF_ERROR(CheckRange("costs.hit_ms", config.costs.hit_ms, 0, 1e9));
  RETURN_IF_ERROR(CheckRange("costs.miss_ms", config.costs.miss_ms, 0, 1e9));
  RETURN_IF_ERROR(CheckRange("costs.uniform_round_trip_ms",
                             config.costs.uniform_round_trip_ms.value_or(0), 0, 1e9));
  if (config.zones.size() != kRegions) {
    return absl::InvalidArgumentError(
        absl::StrCat("zones: ", config.zones.size(), " given for ", kRegions, " regions"));
  }
  return absl::OkStatus();
}

// The fleet while requests pass, and the choice of a replica.
class Fleet {
 public:
  explicit Fleet(const RegionConfig& config) : config_(config) {
    for (int region = 0; region < kRegions; ++region) {
      for (int i = 0; i < config.replicas_per_region; ++i) {
        const std::uint64_t seed = config.eviction_seed * 1000 + replicas_.size();
        replicas_.push_back({region, 0, PrefixSlots(config.slots, config.eviction, seed)});
      }
    }
  }

  Replica& Choose(int index, const RegionRequest& request) {
    switch (config_.policy) {
      case RegionPolicy::kRoundRobin:
        return replicas_[static_cast<std::size_t>(index) % replicas_.size()];
      case RegionPolicy::kRegional:
        for (Replica& replica : replicas_) {
          if (replica.region == request.origin && replica.cache.Contains(request.prefix)) {
            return replica;
          }
        }
        return Local(request);
      case RegionPolicy::kGlobal:
        return Nearest(request);
    }
    return Local(request);
  }

  int caching_replicas() const {
    return static_cast<int>(std::count_if(replicas_.begin(), replicas_.end(),
                                          [](const auto& r) { return r.cache.ever_used(); }));
  }

 private:
  Replica& Nearest(const RegionRequest& request) {
    Replica* best = nullptr;
    double best_ms = 0;
    for (Replica& replica : replicas_) {
      if (!MayServe(replica, request) || !replica.cache.Contains(request.prefix)) {
        continue;
      }
      const double ms =
          config_.costs.hit_ms + RegionRoundTripMs(config_.costs, request.origin, replica.region);
      if (best == nullptr || ms < best_ms) {
        best = &replica;
        best_ms = ms;
      }
    }
    return best == nullptr || best_ms > config_.costs.miss_ms ? Local(request) : *best;
  }

  bool MayServe(const Replica& replica, const RegionRequest& request) const {
    return !config_.residency || config_.zones[static_cast<std::size_t>(replica.region)] ==
                                     config_.zones[static_cast<std::size_t>(request.origin)];
  }

  Replica& Local(const RegionRequest& request) {
    const int count = config_.replicas_per_region;
    const auto first = replicas_.begin() + request.origin * count;
    if (config_.local_choice == LocalChoice::kAffinity) {
      return *(first + request.prefix % count);
    }
    return *std::min_element(first, first + count, [](const Replica& a, const Replica& b) {
      return a.queue_depth < b.queue_depth;
    });
  }

  const RegionConfig& config_;  // owned by the caller of SimulateRegions
  std::vector<Replica> replicas_;
};

// Nearest ranks as the course takes them.
void SummarizeTimes(std::vector<double> times_ms, RegionResult& result) {
  result.mean_ttft_ms = std::accumulate(times_ms.begin(), times_ms.end(), 0.0) / result.requests;
  std::sort(times_ms.begin(), times_ms.end());
  const std::size_t count = times_ms.size();
  result.p50_ttft_ms = times_ms[count / 2];
  result.p99_ttft_ms = times_ms[std::max<std::size_t>(count * 99 / 100, 1) - 1];
}

}  // namespace

const char* RegionName(int region) {
  return kRegionNames.at(static_cast<std::size_t>(region));
}

const char* RegionPolicyName(RegionPolicy policy) {
  switch (policy) {
    case RegionPolicy::kRoundRobin:
      return "round-robin";
    case RegionPolicy::kRegional:
      return "regional";
    case RegionPolicy::kGlobal:
      return "global";
  }
  return "";
}

RegionCosts ScaledRegionCosts(double prompt_tokens, bool hit_scales) {
  const double scale = prompt_tokens / kCalibratedTokens;
  return {.hit_ms = hit_scales ? kHitMs * scale : kHitMs, .miss_ms = kMissMs * scale};
}

std::vector<RegionRequest> MakeRegionWorkload(int requests, int prefixes, std::uint64_t seed) {
  PythonRandom random(seed);
  std::vector<RegionRequest> workload;
  workload.reserve(static_cast<std::size_t>(requests));
  for (int i = 0; i < requests; ++i) {
    const int origin = static_cast<int>(random.Below(kRegions));
    const int prefix = static_cast<int>(random.Below(static_cast<std::uint32_t>(prefixes)));
    workload.push_back({origin, prefix});
  }
  return workload;
}

double RegionRoundTripMs(const RegionCosts& costs, int from, int to) {
  if (from != to && costs.uniform_round_trip_ms.has_value()) {
    return *costs.uniform_round_trip_ms;
  }
  return kRoundTripMs[from][to];
}

absl::StatusOr<RegionResult> SimulateRegions(const RegionConfig& config) {
  RETURN_IF_ERROR(Validate(config));
  Fleet fleet(config);
  PythonRandom random(config.simulation_seed);
  RegionResult result{.requests = config.requests};
  std::array<double, kRegions> origin_sum_ms{};
  std::array<int, kRegions> origin_count{};
  result.out_of_zone_by_origin.assign(kRegions, 0);
  std::vector<double> times_ms;
  const auto workload = MakeRegionWorkload(config.requests, config.prefixes, config.workload_seed);
  for (int i = 0; i < config.requests; ++i) {
    const RegionRequest& request = workload[static_cast<std::size_t>(i)];
    const auto origin = static_cast<std::size_t>(request.origin);
    Replica& replica = fleet.Choose(i, request);
    const bool hit = replica.cache.Contains(request.prefix);
    if (hit) {
      replica.cache.Touch(request.prefix);
    } else {
      result.evictions += replica.cache.Insert(request.prefix) ? 1 : 0;
    }
    // The course's update: it takes away what it adds, and the depth is 0 for ever.
    const int arrivals = random.NextDouble() < 0.4 ? 1 : 0;
    replica.queue_depth = std::max(0, replica.queue_depth + arrivals - 1);

    const double ms = (hit ? config.costs.hit_ms : config.costs.miss_ms) +
                      RegionRoundTripMs(config.costs, request.origin, replica.region);
    const bool left_zone =
        config.zones[origin] != config.zones[static_cast<std::size_t>(replica.region)];
    times_ms.push_back(ms);
    ++result.ttft_histogram[ms];
    result.hits += hit ? 1 : 0;
    result.crossings += replica.region != request.origin ? 1 : 0;
    result.out_of_zone += left_zone ? 1 : 0;
    result.out_of_zone_by_origin[origin] += left_zone ? 1 : 0;
    origin_sum_ms[origin] += ms;
    ++origin_count[origin];
  }
  SummarizeTimes(std::move(times_ms), result);
  result.cost_dollars = result.crossings * config.costs.dollars_per_crossing;
  for (std::size_t origin = 0; origin < kRegions; ++origin) {
    result.origin_mean_ttft_ms.push_back(
        origin_count[origin] == 0 ? 0 : origin_sum_ms[origin] / origin_count[origin]);
  }
  result.caching_replicas = fleet.caching_replicas();
  return result;
}

double CrossRegionBreakEvenTokens(double round_trip_ms, bool hit_scales) {
  return hit_scales ? round_trip_ms * kCalibratedTokens / (kMissMs - kHitMs)
                    : (round_trip_ms + kHitMs) * kCalibratedTokens / kMissMs;
}

absl::StatusOr<std::optional<int>> FleetBreakEvenTokens(RegionConfig config,
                                                        double round_trip_ms,
                                                        bool hit_scales,
                                                        int most_tokens) {
  for (int tokens = 1; tokens <= most_tokens; ++tokens) {
    config.costs = ScaledRegionCosts(tokens, hit_scales);
    config.costs.uniform_round_trip_ms = round_trip_ms;
    config.policy = RegionPolicy::kGlobal;
    ASSIGN_OR_RETURN(const RegionResult global, SimulateRegions(config));
    config.policy = RegionPolicy::kRegional;
    ASSIGN_OR_RETURN(const RegionResult regional, SimulateRegions(config));
    if (global.mean_ttft_ms < regional.mean_ttft_ms) {
      return std::optional<int>(tokens);
    }
  }
  return std::optional<int>();
}

}  // namespace baton
