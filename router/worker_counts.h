#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "common/clock.h"

namespace baton {

// What one worker has to do: by its last report, and by this router's own requests, which count at
// once. Shared with the calls it counts, which may end after the fleet. Thread-safe.
struct WorkerCounts {
  // By the last report, from all routers.
  std::atomic<std::uint64_t> reported_prefill_tokens{0};  // still to be computed
  std::atomic<std::uint32_t> reported_decoding{0};        // sequences
  std::atomic<std::uint64_t> reported_context_tokens{0};  // of these, together

  // Of this router.
  std::atomic<std::uint64_t> in_flight{0};          // sequences
  std::atomic<std::uint64_t> dispatched{0};         // sequences, since the start
  std::atomic<std::uint64_t> prefill_tokens{0};     // of requests without a first token yet
  std::atomic<TimePoint> avoid_until{TimePoint()};  // a request has found it unreachable
};

// Counts sequences at one worker, and prompt tokens that it is to compute, while it lives.
// Move-only. Not thread-safe.
class LoadMark {
 public:
  LoadMark() = default;
  LoadMark(std::shared_ptr<WorkerCounts> counts, std::uint64_t sequences, std::uint64_t tokens)
      : counts_(std::move(counts)), sequences_(sequences), tokens_(tokens) {
    counts_->in_flight.fetch_add(sequences, std::memory_order_relaxed);
    counts_->dispatched.fetch_add(sequences, std::memory_order_relaxed);
    counts_->prefill_tokens.fetch_add(tokens, std::memory_order_relaxed);
  }
  ~LoadMark() {
    if (counts_ != nullptr) {
      EndPrefill();
      counts_->in_flight.fetch_sub(sequences_, std::memory_order_relaxed);
    }
  }
  LoadMark(LoadMark&& other) noexcept { *this = std::move(other); }
  LoadMark& operator=(LoadMark&& other) noexcept {
    std::swap(counts_, other.counts_);
    std::swap(sequences_, other.sequences_);
    std::swap(tokens_, other.tokens_);
    return *this;
  }

  // The prompt is computed.
  void EndPrefill() {
    if (counts_ != nullptr) {
      counts_->prefill_tokens.fetch_sub(std::exchange(tokens_, 0), std::memory_order_relaxed);
    }
  }

 private:
  std::shared_ptr<WorkerCounts> counts_;
  std::uint64_t sequences_ = 0;
  std::uint64_t tokens_ = 0;
};

}  // namespace baton
