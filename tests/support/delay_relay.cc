#include "tests/support/delay_relay.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

constexpr std::size_t kLongestPacket = 65'536;

using Waiting = std::multimap<TimePoint, std::vector<char>>;  // packets by when they are due

// Until the next packet is due; -1 when there is none.
int PollTimeout(const Waiting& waiting) {
  if (waiting.empty()) {
    return -1;
  }
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(waiting.begin()->first - Clock::System().Now());
  return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DelayRelay>> DelayRelay::Create(const std::string& interface,
                                                               const Times& times) {
  UniqueFd packets(open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!packets.ok()) {
    return absl::NotFoundError(absl::StrCat("/dev/net/tun: ", std::strerror(errno)));
  }
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strncpy(request.ifr_name, interface.c_str(), IFNAMSIZ - 1);
  if (ioctl(packets.get(), TUNSETIFF, &request) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("make the interface ", interface));
  }
  UniqueFd stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.ok()) {
    return absl::ErrnoToStatus(errno, "eventfd");
  }
  return std::unique_ptr<DelayRelay>(new DelayRelay(std::move(packets), std::move(stop), times));
}

DelayRelay::DelayRelay(UniqueFd packets, UniqueFd stop, const Times& times)
    : packets_(std::move(packets)),
      stop_(std::move(stop)),
      times_(times),
      thread_([this] { Run(); }) {}

DelayRelay::~DelayRelay() {
  eventfd_write(stop_.get(), 1);
}

void DelayRelay::Run() const {
  Waiting waiting;
  std::vector<char> packet(kLongestPacket);
  int count = 0;
  while (true) {
    pollfd polled[] = {{.fd = packets_.get(), .events = POLLIN, .revents = 0},
                       {.fd = stop_.get(), .events = POLLIN, .revents = 0}};
    poll(polled, 2, PollTimeout(waiting));
    if ((polled[1].revents & POLLIN) != 0) {
      return;
    }
    ssize_t bytes = 0;
    while ((bytes = read(packets_.get(), packet.data(), packet.size())) > 0) {
      TimePoint due = Clock::System().Now() + times_.delay;
      if (times_.late_every > 0 && ++count % times_.late_every == 0) {
        due += times_.late;
      }
      waiting.emplace(due, std::vector<char>(packet.begin(), packet.begin() + bytes));
    }
    while (!waiting.empty() && waiting.begin()->first <= Clock::System().Now()) {
      const std::vector<char>& due = waiting.begin()->second;
      // One that does not fit is lost, as on any network.
      if (write(packets_.get(), due.data(), due.size()) < 0 && errno != EAGAIN) {
        return;
      }
      waiting.erase(waiting.begin());
    }
  }
}

}  // namespace baton
