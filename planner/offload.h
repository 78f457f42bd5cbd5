#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/prefix_slots.h"

namespace baton {

// Simulates what engines do with a prefix that is no longer in GPU memory: compute it again, keep a
// copy in host memory, or load it from a store that all engines share. Requests come one after the
// other and their times are added up. Pure functions; thread-safe.

enum class OffloadPolicy {
  kNativeOnly,   // a miss computes the prompt
  kCpuOffload,   // as before, and pays for the copy to host memory
  kSharedStore,  // a miss loads the prompt from the shared store, if any engine computed it
                 // (LMCache)
};
const char* OffloadPolicyName(OffloadPolicy policy);

inline constexpr std::array<int, 3> kOffloadPromptTokens = {2000, 4000, 8000};

// Times in place of the course's constants. The arrays go by kOffloadPromptTokens.
struct OffloadCosts {
  std::array<double, 3> prefill_ms{};
  std::array<double, 3> copy_ms{};  // to host memory, or from the shared store
  double decode_ms_per_token = 0;
};

struct OffloadConfig {
  OffloadPolicy policy = OffloadPolicy::kNativeOnly;
  Eviction eviction = Eviction::kFirstIn;
  std::optional<int> slots = 4;  // prefixes that an engine keeps, 1 to 1,000,000; absent: all
  int engines = 4;               // 1 to 1,000
  int prefixes = 6;              // 1 to 1,000,000
  int requests = 200;            // 1 to 1,000,000
  std::uint64_t workload_seed = 7;
  std::uint64_t simulation_seed = 11;
  std::uint64_t eviction_seed = 0;    // Eviction::kRandom only
  double store_ms_per_block = 0.15;   // to host memory, kCpuOffload
  double load_ms_per_block = 3.0;     // from the shared store
  std::optional<OffloadCosts> costs;  // absent: the course's, with the two above
};

// The course's configuration of a policy: only kNativeOnly has a bound on its prefixes.
OffloadConfig CourseOffloadConfig(OffloadPolicy policy);

struct OffloadResult {
  double total_ms = 0;
  double prefill_ms = 0;  // prefill, and copies to and from other memory
  double decode_ms = 0;
  double load_ms = 0;   // of prefill_ms, what came from the shared store
  double store_ms = 0;  // of prefill_ms, copies to host memory
  int local_hits = 0;
  int shared_hits = 0;
  int misses = 0;
  int blocks_stored = 0;  // to host memory
  int blocks_loaded = 0;  // from the shared store

  int avoided() const { return local_hits + shared_hits; }
};

struct OffloadRequest {
  int prompt_tokens = 0;
  int output_tokens = 0;
  int prefix = 0;
};

std::vector<OffloadRequest> MakeOffloadWorkload(int requests, int prefixes, std::uint64_t seed);

// INVALID_ARGUMENT naming the field that is out of range.
absl::StatusOr<OffloadResult> SimulateOffload(const OffloadConfig& config);

// Load time of a block at which loading costs what computing does: 16 tokens / 40 tokens per ms.
double OffloadBreakEvenMsPerBlock();

// Bytes per second that a load time of a block means, and back, by 125,000 bytes a token.
double OffloadBytesPerSecond(double ms_per_block);

}  // namespace baton
