#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "common/clock.h"

namespace baton {

// A count that goes up and down, and how high it was since somebody last asked. Thread-safe.
class PeakCount {
 public:
  void Add(std::uint64_t more) {
    const std::uint64_t now = now_.fetch_add(more, std::memory_order_relaxed) + more;
    std::uint64_t peak = peak_.load(std::memory_order_relaxed);
    while (peak < now && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
  }
  void Subtract(std::uint64_t less) { now_.fetch_sub(less, std::memory_order_relaxed); }

  std::uint64_t now() const { return now_.load(std::memory_order_relaxed); }
  std::uint64_t TakePeak() { return std::max(peak_.exchange(now()), now()); }

 private:
  std::atomic<std::uint64_t> now_{0};
  std::atomic<std::uint64_t> peak_{0};
};

// What one worker has to do: for this router, as of now, and for others, as of its last report.
// Shared with the calls it counts, which may end after the fleet. Thread-safe.
struct WorkerCounts {
  // Of others: what the last report said beyond the most that this router had there since the
  // report before, for the worker counted at some time between the two. So a request of this router
  // counts from its choice to its end, however old the report is.
  std::atomic<std::uint64_t> others_decoding{0};        // sequences
  std::atomic<std::uint64_t> others_context_tokens{0};  // of these, together
  std::atomic<std::uint64_t> others_prefill_tokens{0};  // still to be computed

  // Of this router.
  PeakCount decoding;                        // sequences that decode here, or will
  PeakCount context_tokens;                  // of these sequences' prompts, together
  PeakCount prefill_tokens;                  // of requests without a first token yet
  std::atomic<std::uint64_t> in_flight{0};   // requests
  std::atomic<std::uint64_t> dispatched{0};  // requests, since the start

  std::atomic<TimePoint> avoid_until{TimePoint()};  // a request has found it unreachable
};

// What one request is to one worker; counted there while it lives. Move-only. Not thread-safe.
class LoadMark {
 public:
  struct Load {
    std::uint64_t decoding = 0;        // sequences
    std::uint64_t context_tokens = 0;  // of these, together
    std::uint64_t prefill_tokens = 0;  // to be computed before the first token
  };

  LoadMark() = default;
  LoadMark(std::shared_ptr<WorkerCounts> counts, const Load& load)
      : counts_(std::move(counts)), load_(load) {
    counts_->in_flight.fetch_add(1, std::memory_order_relaxed);
    counts_->dispatched.fetch_add(1, std::memory_order_relaxed);
    counts_->decoding.Add(load.decoding);
    counts_->context_tokens.Add(load.context_tokens);
    counts_->prefill_tokens.Add(load.prefill_tokens);
  }
  ~LoadMark() {
    if (counts_ != nullptr) {
      EndPrefill();
      counts_->in_flight.fetch_sub(1, std::memory_order_relaxed);
      counts_->decoding.Subtract(load_.decoding);
      counts_->context_tokens.Subtract(load_.context_tokens);
    }
  }
  LoadMark(LoadMark&& other) noexcept { *this = std::move(other); }
  LoadMark& operator=(LoadMark&& other) noexcept {
    std::swap(counts_, other.counts_);
    std::swap(load_, other.load_);
    return *this;
  }

  // The prompt is computed.
  void EndPrefill() {
    if (counts_ != nullptr) {
      counts_->prefill_tokens.Subtract(std::exchange(load_.prefill_tokens, 0));
    }
  }

 private:
  std::shared_ptr<WorkerCounts> counts_;
  Load load_;
};

}  // namespace baton
