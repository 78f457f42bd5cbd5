#include "bench/workload.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

constexpr int kSessionBlockTokens = 16;

// Seeds of prompts, and ids of shared pieces, of different loads are far apart.
std::uint64_t FirstSeed(std::uint64_t seed) {
  return (seed + 1) << 32;
}

int Blocks(int tokens) {
  return (tokens + kSessionBlockTokens - 1) / kSessionBlockTokens;
}

void SortByArrival(Workload& workload) {
  std::stable_sort(
      workload.requests.begin(), workload.requests.end(),
      [](const LoadRequest& a, const LoadRequest& b) { return a.shape.arrival < b.shape.arrival; });
}

LoadRequest MakeRequest(const TokenCounts& tokens,
                        Duration arrival,
                        std::uint64_t seed,
                        const char* kind) {
  return {
      .shape = {.arrival = arrival, .prompt_tokens = tokens.prompt, .output_tokens = tokens.output},
      .seed = seed,
      .kind = kind};
}

}  // namespace

Workload MakeUniformWorkload(const TokenCounts& tokens,
                             const ArrivalOptions& arrivals,
                             std::size_t requests,
                             std::uint64_t seed) {
  Workload workload;
  for (const Duration arrival : MakeArrivals(arrivals, requests)) {
    workload.requests.push_back(
        MakeRequest(tokens, arrival, FirstSeed(seed) + workload.requests.size(), "random"));
  }
  return workload;
}

Workload MakeMixedWorkload(const MixedOptions& options, std::uint64_t seed) {
  const double seconds = std::chrono::duration<double>(options.duration).count();
  Workload workload;
  std::uint64_t next = FirstSeed(seed);
  const auto chats = static_cast<std::size_t>(options.chats_per_second * seconds + 0.5);
  for (const Duration arrival : MakeArrivalsWithin({.seed = seed}, chats, options.duration)) {
    workload.requests.push_back(MakeRequest(options.chat, arrival, next++, "chat"));
  }
  const std::chrono::duration<double> every(1 / options.long_per_second);
  for (int i = 0; (i + 0.5) * every.count() < seconds; ++i) {
    const auto arrival = std::chrono::duration_cast<Duration>((i + 0.5) * every);
    workload.requests.push_back(MakeRequest(options.longer, arrival, next++, "long"));
  }
  SortByArrival(workload);
  return workload;
}

Workload MakeSessionWorkload(const SessionOptions& options, std::uint64_t seed) {
  Workload workload{.hashed_tokens = kSessionBlockTokens};
  std::uint64_t next = FirstSeed(seed);
  std::vector<std::uint64_t> system;
  for (int i = 0; i < Blocks(options.system_tokens); ++i) {
    system.push_back(next++);
  }
  for (const Duration start : MakeArrivals(
           {.requests_per_second = options.sessions_per_second, .seed = seed}, options.sessions)) {
    std::vector<std::uint64_t> said = system;
    for (int turn = 0; turn < options.turns; ++turn) {
      for (int i = 0; i < Blocks(options.turn.prompt); ++i) {
        said.push_back(next++);
      }
      workload.requests.push_back(
          {.shape = {.arrival = start + turn * options.between_turns,
                     .prompt_tokens = static_cast<int>(said.size()) * kSessionBlockTokens,
                     .output_tokens = options.turn.output,
                     .hash_ids = said},
           .kind = "turn"});
      for (int i = 0; i < Blocks(options.turn.output); ++i) {
        said.push_back(next++);
      }
    }
  }
  SortByArrival(workload);
  return workload;
}

absl::StatusOr<Workload> MakeTraceWorkload(const Trace& trace,
                                           const ReplayOptions& options,
                                           std::uint64_t seed) {
  Workload workload{.hashed_tokens = trace.hashed_tokens};
  for (std::size_t i = options.first; i < trace.requests.size(); ++i) {
    const TraceRequest& request = trace.requests[i];
    if (options.requests > 0 && workload.requests.size() == options.requests) {
      break;
    }
    if (request.prompt_tokens + request.output_tokens <= options.most_context_tokens) {
      workload.requests.push_back({.shape = request, .seed = FirstSeed(seed) + i, .kind = "trace"});
    }
  }
  if (workload.requests.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the trace has no request from index ",
                                                   options.first, " on that fits ",
                                                   options.most_context_tokens, " tokens"));
  }
  const Duration first = workload.requests.front().shape.arrival;
  const std::chrono::duration<double> span = workload.requests.back().shape.arrival - first;
  double stretch = 1;
  if (options.requests_per_second > 0 && span.count() > 0) {
    stretch = static_cast<double>(workload.requests.size() - 1) / options.requests_per_second /
              span.count();
  }
  for (LoadRequest& request : workload.requests) {
    request.shape.arrival = std::chrono::duration_cast<Duration>(
        stretch * std::chrono::duration<double>(request.shape.arrival - first));
  }
  return workload;
}

Workload WithArrivals(Workload workload, const ArrivalOptions& arrivals) {
  const std::vector<Duration> times = MakeArrivals(arrivals, workload.requests.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    workload.requests[i].shape.arrival = times[i];
  }
  return workload;
}

}  // namespace baton
