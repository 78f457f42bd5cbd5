#pragma once

#include <string>

#include "bench/router_rounds.h"

namespace baton {

// One JSON object: decision_p50_us, decision_p99_us, hash_us, index_bytes_per_entry and more of the
// decisions; `traces`, a list of objects with name, load, hit_rate, hit_rate_round_robin,
// mean_ttft_s, mean_ttft_round_robin_s and more. docs/router-bench.md lists all.
std::string ToJson(const RouterBenchReport& report);
std::string ToTable(const RouterBenchReport& report);

}  // namespace baton
