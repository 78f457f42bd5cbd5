#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/prefix_slots.h"

namespace baton {

// Simulates routers over replicas in three regions, each with a small cache of prefixes. Requests
// come one after the other; there is no queueing. Pure functions; thread-safe.

inline constexpr int kRegions = 3;
const char* RegionName(int region);

enum class RegionPolicy {
  kRoundRobin,
  kRegional,  // a replica of the origin's region that has the prefix, else a local one
  kGlobal,    // the nearest replica that has the prefix, else a local one
};
const char* RegionPolicyName(RegionPolicy policy);

// Which local replica takes a prefix that nobody is to be asked for.
enum class LocalChoice {
  kQueueDepth,  // least queue depth; as the depths stay 0, always the region's first replica
  kAffinity,    // prefix modulo replicas of a region
};

// How a hit's and a miss's time depend on the prompt's length.
struct RegionCosts {
  double hit_ms = 80;
  double miss_ms = 800;
  double dollars_per_crossing = 0.0004;
  std::optional<double> uniform_round_trip_ms;  // between all regions, in place of the table
};

// Times of prompts of another length than the 2,048 tokens that the costs stand for.
RegionCosts ScaledRegionCosts(double prompt_tokens, bool hit_scales);

struct RegionConfig {
  RegionPolicy policy = RegionPolicy::kGlobal;
  LocalChoice local_choice = LocalChoice::kQueueDepth;
  Eviction eviction = Eviction::kFirstIn;
  int slots = 12;               // prefixes that a replica keeps, 1 to 1,000,000
  int replicas_per_region = 4;  // 1 to 1,000
  int prefixes = 40;            // 1 to 1,000,000
  int requests = 1000;          // 1 to 10,000,000
  std::uint64_t workload_seed = 7;
  std::uint64_t simulation_seed = 11;
  std::uint64_t eviction_seed = 0;  // Eviction::kRandom only
  // Residency zone of each region; a request is served in its origin's zone only. Without it
  // anywhere, and "out of zone" is counted by zones {0, 0, 1}: two American regions and a European.
  bool residency = false;
  std::vector<int> zones = {0, 0, 1};
  RegionCosts costs;
};

struct RegionResult {
  int requests = 0;
  int hits = 0;
  int crossings = 0;    // served in another region
  int out_of_zone = 0;  // served in another zone than the origin's
  int evictions = 0;
  double mean_ttft_ms = 0;
  double p50_ttft_ms = 0;  // element `requests / 2` of the sorted times
  double p99_ttft_ms = 0;  // element `requests * 99 / 100 - 1`
  double cost_dollars = 0;
  std::vector<double> origin_mean_ttft_ms;  // by origin; 0 where none came from
  std::vector<int> out_of_zone_by_origin;   // by origin
  std::map<double, int> ttft_histogram;     // time in ms to number of requests
  int caching_replicas = 0;                 // replicas that ever kept a prefix

  double hit_share() const { return double{1} * hits / requests; }
};

struct RegionRequest {
  int origin = 0;
  int prefix = 0;
};

std::vector<RegionRequest> MakeRegionWorkload(int requests, int prefixes, std::uint64_t seed);

// There and back, in ms: 0 within a region.
double RegionRoundTripMs(const RegionCosts& costs, int from, int to);

// INVALID_ARGUMENT naming the field that is out of range.
absl::StatusOr<RegionResult> SimulateRegions(const RegionConfig& config);

// Prompt length in tokens above which a hit in another region is answered sooner than a miss at
// home, by the 80 and 800 ms of 2,048 tokens: with a hit that scales with the length, or one that
// does not.
double CrossRegionBreakEvenTokens(double round_trip_ms, bool hit_scales);

// The first whole length at which kGlobal has the lower mean time over the fleet than kRegional,
// with the same round trip between all regions; nullopt when there is none up to `most_tokens`.
absl::StatusOr<std::optional<int>> FleetBreakEvenTokens(RegionConfig config,
                                                        double round_trip_ms,
                                                        bool hit_scales,
                                                        int most_tokens = 4096);

}  // namespace baton
