#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>

#include "common/clock.h"

namespace baton {

struct LandingLimits {
  // Without a byte for so long nothing is waited for any more: a message was lost for good.
  Duration silence = std::chrono::seconds(1);
  // Before a rate says anything.
  Duration observation = std::chrono::milliseconds(250);
};

// Whether the blocks of a prompt that is computed elsewhere are worth waiting for: as long as they
// come, and come sooner than this worker could compute what is missing. From the first token on,
// when all is computed and nothing but the network holds them up.
//
// Not thread-safe.
class LandingWatch {
 public:
  // `computing`: all of the prompt, here; absent: not known, or no alternative.
  LandingWatch(const LandingLimits& limits,
               TimePoint first_token,
               std::size_t total_bytes,
               std::size_t landed_bytes,
               std::optional<Duration> computing);

  // So many bytes have come, no fewer than before.
  void OnProgress(TimePoint now, std::size_t landed_bytes);

  // Why it is not worth waiting for the rest; nullopt: it is.
  std::optional<std::string> WhyGiveUp(TimePoint now) const;

 private:
  struct Sample {
    TimePoint when;
    std::size_t bytes = 0;
  };

  const LandingLimits limits_;
  const std::size_t total_bytes_;
  const std::optional<Duration> computing_;
  TimePoint last_change_;
  std::deque<Sample> samples_;  // of about the last second, oldest first; at least one
};

}  // namespace baton
