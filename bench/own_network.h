#pragma once

#include <string>

namespace baton {

// Moves this process, and what it starts from now on, into a network of its own: a network
// namespace whose loopback uses the congestion control `cubic`, with a sysfs of its own, because
// UCX looks there for devices. Needs CAP_SYS_ADMIN, or a kernel that gives users namespaces of
// their own.
//
// Returns what is the case now, for people to read: what was made, or why it was not and what that
// means. REQUIRES: no other thread yet.
struct NetworkOutcome {
  bool own = false;    // a namespace of its own
  bool cubic = false;  // asked for on its loopback
  std::string description;
};
NetworkOutcome EnterOwnNetwork();

}  // namespace baton
