#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/worker.pb.h"
#include "common/clock.h"
#include "engine/step_statistics.h"
#include "kvtransfer/transfer_types.h"

namespace baton {

// A mean in which a new value has the weight of one of the last `memory` values: the plain mean at
// first, then one that forgets.
class MovingMean {
 public:
  void Add(double value, int memory);
  double value() const { return value_; }
  int count() const { return count_; }  // at most the memory

 private:
  double value_ = 0;
  int count_ = 0;
};

// How quick this worker was seen to be, from what it does anyway. planner/rates.h says what the
// numbers mean; the cost model is fitted to them.
//
// - Prefill: prompts that were computed alone, from their first row to their first token, with
//   nothing of them cached and no sequence decoding meanwhile. One mean for each power of two of
//   their lengths, over about the last 8 prompts.
// - Decode: steps in which every row is the next token of a sequence. One mean for each power of
//   two of sequences and of their mean context, over about the last 64 steps.
// - Transfers into this worker, by transport: fixed seconds and bytes a second, fitted to the last
//   64. A transfer's time is FetchStats::receiving, in which something was on its way: what hid
//   behind the computing of later pieces is no time of the transfer. Transfers that changed their
//   transport do not count, nor do those by grpc or inproc, whose time on the way is not seen.
//
// The first prompt and the first decode step after the start are left out: memory is touched and
// kernels are loaded for the first time.
//
// Bounded: 22 KiB at most. Thread-safe; OnStep is for the engine thread, which it holds up for a
// few additions.
class RateMeter final : public StepObserver {
 public:
  void OnStep(const StepStatistics& step) override;
  void OnLanded(const FetchStats& fetch);

  v1::WorkerRates rates() const;

 private:
  static constexpr std::size_t kLengths = 20;    // powers of two of tokens
  static constexpr std::size_t kBatches = 13;    // of sequences
  static constexpr std::size_t kTransfers = 64;  // kept for each transport

  struct PrefillMean {
    MovingMean tokens;
    MovingMean seconds;
  };
  struct DecodeMean {
    MovingMean batch;
    MovingMean depth;
    MovingMean seconds;
  };
  struct Transfer {
    double bytes = 0;
    double seconds = 0;
  };
  struct Transport {
    std::string name;
    std::vector<Transfer> transfers;  // the last ones, in a ring
    std::size_t next = 0;
  };
  // Steps with rows of prompts, one after the other.
  struct PromptRun {
    TimePoint start;
    int rows = 0;
    bool counts = true;  // nothing but one whole prompt, so far
  };

  void FollowPrompt(const StepStatistics& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddDecodeStep(const StepStatistics& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static v1::WorkerRates::TransportRate Fit(const Transport& transport);

  mutable absl::Mutex mutex_;
  std::optional<PromptRun> run_ ABSL_GUARDED_BY(mutex_);
  bool prefill_warm_ ABSL_GUARDED_BY(mutex_) = false;  // one prompt has been computed
  bool decode_warm_ ABSL_GUARDED_BY(mutex_) = false;   // one decode step has been made
  std::array<PrefillMean, kLengths> prefill_ ABSL_GUARDED_BY(mutex_);
  std::array<std::array<DecodeMean, kLengths>, kBatches> decode_ ABSL_GUARDED_BY(mutex_);
  std::vector<Transport> transports_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton
