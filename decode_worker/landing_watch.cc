#include "decode_worker/landing_watch.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

// What the rate is taken over.
constexpr Duration kWindow = std::chrono::seconds(1);

double Seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

LandingWatch::LandingWatch(const LandingLimits& limits,
                           TimePoint first_token,
                           std::size_t total_bytes,
                           std::size_t landed_bytes,
                           std::optional<Duration> computing)
    : limits_(limits),
      total_bytes_(total_bytes),
      computing_(computing),
      last_change_(first_token),
      samples_{{first_token, landed_bytes}} {}

void LandingWatch::OnProgress(TimePoint now, std::size_t landed_bytes) {
  if (landed_bytes <= samples_.back().bytes) {
    return;
  }
  last_change_ = now;
  samples_.push_back({now, landed_bytes});
  while (samples_.size() > 2 && samples_[1].when + kWindow < now) {
    samples_.pop_front();
  }
}

std::optional<std::string> LandingWatch::WhyGiveUp(TimePoint now) const {
  const std::size_t landed = samples_.back().bytes;
  if (now - last_change_ >= limits_.silence) {
    return absl::StrCat("the blocks did not arrive in time after the first token: ", landed, " of ",
                        total_bytes_, " bytes");
  }
  const Duration observed = now - samples_.front().when;
  if (!computing_ || observed < limits_.observation || landed >= total_bytes_) {
    return std::nullopt;
  }
  if (landed == samples_.front().bytes && observed < std::min(*computing_, limits_.silence)) {
    return std::nullopt;  // a pause is no rate
  }
  const auto missing = static_cast<double>(total_bytes_ - landed);
  const double rate = static_cast<double>(landed - samples_.front().bytes) / Seconds(observed);
  const double computing = Seconds(*computing_) * missing / static_cast<double>(total_bytes_);
  // What takes no longer than an observation is not worth another decision.
  if (missing <= rate * (computing + Seconds(limits_.observation))) {
    return std::nullopt;
  }
  return absl::StrCat(
      "the blocks arrive more slowly than they are computed: ", static_cast<std::int64_t>(rate),
      " bytes a second, ", static_cast<std::int64_t>(missing), " missing");
}

}  // namespace baton
