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
  std::atomic<std::uint64_t> in_flight{0};          // requests
  std::atomic<std::uint64_t> dispatched{0};         // requests, since the start
  std::atomic<std::uint64_t> decoding{0};           // sequences that decode here, or will
  std::atomic<std::uint64_t> context_tokens{0};     // of these sequences' prompts, together
  std::atomic<std::uint64_t> prefill_tokens{0};     // of requests without a first token yet
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
    counts_->decoding.fetch_add(load.decoding, std::memory_order_relaxed);
    counts_->context_tokens.fetch_add(load.context_tokens, std::memory_order_relaxed);
    counts_->prefill_tokens.fetch_add(load.prefill_tokens, std::memory_order_relaxed);
  }
  ~LoadMark() {
    if (counts_ != nullptr) {
      EndPrefill();
      counts_->in_flight.fetch_sub(1, std::memory_order_relaxed);
      counts_->decoding.fetch_sub(load_.decoding, std::memory_order_relaxed);
      counts_->context_tokens.fetch_sub(load_.context_tokens, std::memory_order_relaxed);
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
      counts_->prefill_tokens.fetch_sub(std::exchange(load_.prefill_tokens, 0),
                                        std::memory_order_relaxed);
    }
  }

 private:
  std::shared_ptr<WorkerCounts> counts_;
  Load load_;
};

}  // namespace baton
