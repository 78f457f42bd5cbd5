#include "planner/offload.h"

#include <algorithm>
#include <set>

#include "common/status_macros.h"
#include "planner/disaggregation.h"
#include "planner/field_check.h"
#include "planner/python_random.h"

namespace baton {
namespace {

constexpr double kDecodeTokensPerMs = 0.15;
constexpr int kBlockTokens = 16;

int BlocksOf(int tokens) {
  return (tokens + kBlockTokens - 1) / kBlockTokens;
}

absl::Status Validate(const OffloadConfig& config) {
  RETURN_IF_ERROR(CheckRange("slots", config.slots.value_or(1), 1, 1e6));
  RETURN_IF_ERROR(CheckRange("engines", config.engines, 1, 1000));
  RETURN_IF_ERROR(CheckRange("prefixes", config.prefixes, 1, 1e6));
  RETURN_IF_ERROR(CheckRange("requests", config.requests, 1, 1e6));
  RETURN_IF_ERROR(CheckRange("store_ms_per_block", config.store_ms_per_block, 0, 1e9));
  RETURN_IF_ERROR(CheckRange("load_ms_per_block", config.load_ms_per_block, 0, 1e9));
  if (config.costs.has_value()) {
    RETURN_IF_ERROR(
        CheckRange("costs.decode_ms_per_token", config.costs->decode_ms_per_token, 0, 1e9));
    for (std::size_t i = 0; i < kOffloadPromptTokens.size(); ++i) {
      RETURN_IF_ERROR(CheckRange("costs.prefill_ms", config.costs->prefill_ms[i], 0, 1e9));
      RETURN_IF_ERROR(CheckRange("costs.copy_ms", config.costs->copy_ms[i], 0, 1e9));
    }
  }
  return absl::OkStatus();
}

OffloadCosts CourseCosts(const OffloadConfig& config) {
  const double ms_per_block = config.policy == OffloadPolicy::kCpuOffload
                                  ? config.store_ms_per_block
                                  : config.load_ms_per_block;
  OffloadCosts costs{.decode_ms_per_token = 1 / kDecodeTokensPerMs};
  for (std::size_t i = 0; i < kOffloadPromptTokens.size(); ++i) {
    costs.prefill_ms[i] = kOffloadPromptTokens[i] / kCoursePrefillTokensPerMs;
    costs.copy_ms[i] = BlocksOf(kOffloadPromptTokens[i]) * ms_per_block;
  }
  return costs;
}

// Serves one request on one engine and adds up what it takes.
class Simulation {
 public:
  explicit Simulation(const OffloadConfig& config)
      : config_(config), costs_(config.costs.value_or(CourseCosts(config))) {
    for (int engine = 0; engine < config.engines; ++engine) {
      const auto seed = config.eviction_seed * 1000 + static_cast<std::uint64_t>(engine);
      local_.emplace_back(config.slots, config.eviction, seed);
    }
  }

  void Serve(const OffloadRequest& request, std::size_t engine) {
    const double prefill_ms = PrefillOnEngine(request, local_[engine]);
    const double decode_ms = request.output_tokens * costs_.decode_ms_per_token;
    result_.prefill_ms += prefill_ms;
    result_.decode_ms += decode_ms;
    result_.total_ms += prefill_ms + decode_ms;
  }

  const OffloadResult& result() const { return result_; }

 private:
  double PrefillOnEngine(const OffloadRequest& request, PrefixSlots& local) {
    if (local.Contains(request.prefix)) {
      local.Touch(request.prefix);
      ++result_.local_hits;
      return 0;
    }
    local.Insert(request.prefix);
    const int blocks = BlocksOf(request.prompt_tokens);
    const auto length = static_cast<std::size_t>(
        std::find(kOffloadPromptTokens.begin(), kOffloadPromptTokens.end(), request.prompt_tokens) -
        kOffloadPromptTokens.begin());
    if (config_.policy == OffloadPolicy::kSharedStore && store_.contains(request.prefix)) {
      ++result_.shared_hits;
      result_.blocks_loaded += blocks;
      result_.load_ms += costs_.copy_ms[length];
      return costs_.copy_ms[length];
    }
    ++result_.misses;
    double ms = costs_.prefill_ms[length];
    if (config_.policy == OffloadPolicy::kCpuOffload) {
      result_.blocks_stored += blocks;
      result_.store_ms += costs_.copy_ms[length];
      ms += costs_.copy_ms[length];
    }
    store_.insert(request.prefix);
    return ms;
  }

  const OffloadConfig& config_;  // owned by the caller of SimulateOffload
  const OffloadCosts costs_;
  std::vector<PrefixSlots> local_;
  std::set<int> store_;
  OffloadResult result_;
};

}  // namespace

const char* OffloadPolicyName(OffloadPolicy policy) {
  switch (policy) {
    case OffloadPolicy::kNativeOnly:
      return "native-only";
    case OffloadPolicy::kCpuOffload:
      return "cpu-offload";
    case OffloadPolicy::kSharedStore:
      return "lmcache";
  }
  return "";
}

OffloadConfig CourseOffloadConfig(OffloadPolicy policy) {
  OffloadConfig config{.policy = policy};
  if (policy != OffloadPolicy::kNativeOnly) {
    config.slots = std::nullopt;
  }
  return config;
}

std::vector<OffloadRequest> MakeOffloadWorkload(int requests, int prefixes, std::uint64_t seed) {
  PythonRandom random(seed);
  std::vector<OffloadRequest> workload;
  workload.reserve(static_cast<std::size_t>(requests));
  for (int i = 0; i < requests; ++i) {
    OffloadRequest request;
    request.prompt_tokens = kOffloadPromptTokens[random.Below(kOffloadPromptTokens.size())];
    request.output_tokens = static_cast<int>(random.Between(150, 400));
    request.prefix = static_cast<int>(random.Below(static_cast<std::uint32_t>(prefixes)));
    workload.push_back(request);
  }
  return workload;
}

absl::StatusOr<OffloadResult> SimulateOffload(const OffloadConfig& config) {
  RETURN_IF_ERROR(Validate(config));
  PythonRandom random(config.simulation_seed);
  Simulation simulation(config);
  const auto workload = MakeOffloadWorkload(config.requests, config.prefixes, config.workload_seed);
  for (int i = 0; i < config.requests; ++i) {
    const std::size_t engine = random.Below(static_cast<std::uint32_t>(config.engines));
    simulation.Serve(workload[static_cast<std::size_t>(i)], engine);
  }
  return simulation.result();
}

double OffloadBreakEvenMsPerBlock() {
  return kBlockTokens / kCoursePrefillTokensPerMs;
}

double OffloadBytesPerSecond(double ms_per_block) {
  return kBlockTokens * kCourseKvBytesPerToken / (ms_per_block / 1000);
}

}  // namespace baton
