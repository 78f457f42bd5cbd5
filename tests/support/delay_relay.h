#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/file.h"

namespace baton {

// A network interface of this network namespace that gives back every IP packet sent to it, later:
// what the kernel's own emulator of slow networks does where it is there.
//
// Packets pass on a thread of its own; the interface goes with the object. Thread-safe.
class DelayRelay {
 public:
  struct Times {
    std::chrono::milliseconds delay{};
    // Every so many packets one is delayed by this much more, so that later ones overtake it; 0:
    // none.
    int late_every = 0;
    std::chrono::milliseconds late{};
  };

  // `interface`: up to 15 characters, not taken. NOT_FOUND where the machine has no TUN device.
  static absl::StatusOr<std::unique_ptr<DelayRelay>> Create(const std::string& interface,
                                                            const Times& times);
  ~DelayRelay();

 private:
  DelayRelay(UniqueFd packets, UniqueFd stop, const Times& times);
  void Run() const;

  const UniqueFd packets_;
  const UniqueFd stop_;  // an eventfd
  const Times times_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace baton
