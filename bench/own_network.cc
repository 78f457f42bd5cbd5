#include "bench/own_network.h"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/line_child.h"
#include "common/file.h"

namespace baton {
namespace {

constexpr int kNamespaces = CLONE_NEWNET | CLONE_NEWNS;

bool WriteFile(const char* path, const std::string& text) {
  const UniqueFd file(open(path, O_WRONLY | O_CLOEXEC));
  return file.ok() &&
         write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// A user namespace in which this user is root, for users who are not.
bool BecomeOwnRoot() {
  const uid_t user = getuid();
  const gid_t group = getgid();
  return unshare(CLONE_NEWUSER | kNamespaces) == 0 && WriteFile("/proc/self/setgroups", "deny") &&
         WriteFile("/proc/self/uid_map", absl::StrCat("0 ", user, " 1")) &&
         WriteFile("/proc/self/gid_map", absl::StrCat("0 ", group, " 1"));
}

bool BringUpLoopback() {
  const UniqueFd any(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strncpy(request.ifr_name, "lo", sizeof(request.ifr_name) - 1);
  request.ifr_flags = IFF_UP;
  return any.ok() && ioctl(any.get(), SIOCSIFFLAGS, &request) == 0;
}

// The two routes that the kernel has made for the loopback, with cubic.
bool RouteWithCubic() {
  for (const char* destination : {"127.0.0.1/32", "127.0.0.0/8"}) {
    const std::vector<std::string> command = {
        "/bin/sh", "-c",
        absl::StrCat("PATH=$PATH:/usr/sbin:/sbin exec ip route replace local ", destination,
                     " dev lo table local proto kernel scope host src 127.0.0.1 congctl cubic")};
    const auto child = LineChild::Start(command);
    if (!child.ok() || (*child)->Finish(std::chrono::seconds(10)) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

NetworkOutcome EnterOwnNetwork() {
  if (unshare(kNamespaces) != 0 && !BecomeOwnRoot()) {
    return {.description = absl::StrCat(
                "the host's, because a namespace cannot be made (", std::strerror(errno),
                "): TCP runs under the host's congestion control and beside its other traffic")};
  }
  // Mounts made here stay here.
  const bool sysfs = mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                     mount("sysfs", "/sys", "sysfs", 0, nullptr) == 0;
  if (!sysfs || !BringUpLoopback()) {
    return {.own = true,
            .description = absl::StrCat("a namespace that could not be set up (",
                                        std::strerror(errno), "): expect UCX to fail")};
  }
  if (!RouteWithCubic()) {
    return {.own = true,
            .description =
                "a namespace of its own, without a route for cubic (is iproute2 "
                "installed?): TCP runs under the default congestion control"};
  }
  return {.own = true, .cubic = true, .description = "a namespace of its own with cubic"};
}

}  // namespace baton
