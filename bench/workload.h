#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/load_arrivals.h"
#include "bench/load_request.h"

namespace baton {

// Makers of load. Every prompt is of tokens of its own unless a maker says what is shared, and
// those of two seeds have nothing in common. The same arguments give the same load. Pure;
// thread-safe.

struct TokenCounts {
  int prompt = 512;
  int output = 64;
};

// All requests alike; kind "random".
Workload MakeUniformWorkload(const TokenCounts& tokens,
                             const ArrivalOptions& arrivals,
                             std::size_t requests,
                             std::uint64_t seed);

// Short chats that decode while long prompts come: kinds "chat" and "long". Chats come by Poisson,
// as many as the rate says, long prompts evenly, the first in the middle of its interval.
struct MixedOptions {
  TokenCounts chat{.prompt = 64, .output = 128};
  TokenCounts longer{.prompt = 2048, .output = 8};
  double chats_per_second = 1;
  double long_per_second = 0.2;
  Duration duration = std::chrono::seconds(60);
};
Workload MakeMixedWorkload(const MixedOptions& options, std::uint64_t seed);

// Chats whose turns repeat what was said before, all behind one system prompt: kind "turn".
// Sessions come by Poisson; a turn's prompt holds the prompts of the turns before it and as many
// tokens as were answered to them. All lengths are rounded up to blocks of 16 tokens.
struct SessionOptions {
  int system_tokens = 256;
  int turns = 4;
  TokenCounts turn{.prompt = 64, .output = 32};
  double sessions_per_second = 0.5;
  Duration between_turns = std::chrono::seconds(4);  // from one turn to the next
  std::size_t sessions = 20;
};
Workload MakeSessionWorkload(const SessionOptions& options, std::uint64_t seed);

// Requests of a trace; kind "trace".
struct ReplayOptions {
  std::size_t first = 0;           // index of the first request
  std::size_t requests = 0;        // how many from there on; 0: all
  double requests_per_second = 0;  // times are stretched to this mean rate; 0: as they were
  int most_context_tokens = 8192;  // requests whose prompt and output are more are left out
};
// INVALID_ARGUMENT when nothing is left.
absl::StatusOr<Workload> MakeTraceWorkload(const Trace& trace,
                                           const ReplayOptions& options,
                                           std::uint64_t seed);
// The same requests at other times: `arrivals` in place of the trace's own.
Workload WithArrivals(Workload workload, const ArrivalOptions& arrivals);

}  // namespace baton
