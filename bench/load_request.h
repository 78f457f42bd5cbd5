#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "baton/v1/completions.pb.h"
#include "bench/trace_files.h"
#include "common/clock.h"

namespace baton {

// What load is made of, and what came of it. Plain values, no thread rule. All times of one run
// count from its start.

struct LoadRequest {
  TraceRequest shape;      // `arrival` is when it is to be sent
  std::uint64_t seed = 0;  // of the tokens of a prompt without hash ids
  std::string kind;        // what reports group by: "chat", "long"
  v1::Path path = v1::PATH_UNSPECIFIED;
};

// Requests by arrival.
struct Workload {
  int hashed_tokens = 0;  // as in Trace
  std::vector<LoadRequest> requests;
};

// What the server says about one request; all in milliseconds.
struct ServerTimes {
  double queue_ms = 0;
  double tokenize_ms = 0;
  double route_ms = 0;
  double prefill_ms = 0;
  double transfer_ms = 0;
  double exposed_transfer_ms = 0;
  double first_token_ms = 0;
};

struct RequestRecord {
  std::string kind;
  Duration scheduled{};  // when it was due; what latencies count from
  Duration sent{};       // when the call was made
  Duration ended{};
  int prompt_tokens = 0;
  std::vector<Duration> token_times;     // of arrival, one for each token
  absl::Status status;                   // OK: answered to the end
  v1::Path path = v1::PATH_UNSPECIFIED;  // that was taken
  v1::RouteReason reason = v1::ROUTE_REASON_UNSPECIFIED;
  std::string transport;
  std::string decode_worker;
  std::uint32_t cached_prompt_tokens = 0;
  ServerTimes server;

  bool ok() const { return status.ok() && !token_times.empty(); }
};

// One run of a load generator: one record for every request, in their order.
struct LoadRun {
  std::vector<RequestRecord> records;
  Duration duration{};     // from the start to the last end
  double cpu_seconds = 0;  // of the generator's process
};

}  // namespace baton
