#pragma once

#include <cstddef>
#include <cstdint>

#include "planner/cost_model.h"

namespace baton {

struct DecisionSetup {
  std::uint32_t decode_workers = 500;
  std::uint32_t prefill_workers = 500;
  std::size_t indexed_blocks = 1'000'000;
  std::size_t slower_blocks = 0;  // of these, that host memory and disks of other workers have too
  std::size_t prompt_tokens = 4096;
  int decisions = 20'000;
  std::uint64_t seed = 1;
};

struct DecisionTimes {
  double p50_us = 0;  // of processor time
  double p99_us = 0;
  double clock_p50_us = 0;  // with what other programs took meanwhile
  double clock_p99_us = 0;
};

struct DecisionFigures {
  // One decision: look-up of the prompt's blocks, candidates filled in for all workers, choice by
  // the `prefix` policy.
  DecisionTimes all;
  DecisionTimes quiet;
  // The other half of them: while another thread lets workers store and evict blocks as fast as it
  // can.
  DecisionTimes with_updates;
  // Arithmetic that touches no memory and takes about as long, in turn with the quiet decisions:
  // what its p99 is above its p50, the machine adds to anything.
  DecisionTimes machine;
  double updates_per_second = 0;  // blocks, meanwhile
  double match_us = 0;            // the look-up alone, median, quiet
  double hash_us = 0;             // hashing the blocks of one prompt, median
  double index_bytes_per_entry = 0;
  std::size_t index_entries = 0;  // pairs of block and worker
  std::size_t index_blocks = 0;
};

// Measures on this machine, now: processor time, and the clock beside it. The prompts are a
// mixture: a quarter each are wholly cached by a few workers; wholly cached by all; begin with
// 1,024 tokens that all cache; are new.
DecisionFigures MeasureDecisions(const DecisionSetup& setup, const CostModel& costs);

}  // namespace baton
