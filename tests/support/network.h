#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/support/delay_relay.h"
#include "tests/support/process.h"

namespace baton {

// One machine of a TestNetwork: a network namespace with one interface, eth0, and a mount namespace
// with a sysfs of its own, in which UCX finds that interface and no other.
//
// Not thread-safe.
class TestHost {
 public:
  // IPv4.
  const std::string& address() const { return address_; }
  // Put in front of a program and its arguments this runs it there. The process stays the same: it
  // is killed, and ends with the test, as any ChildProcess.
  std::vector<std::string> Entry() const;
  // A shell script there, as root; an error when it fails.
  absl::Status Run(const std::string& script) const;

 private:
  friend class TestNetwork;
  TestHost(std::unique_ptr<ChildProcess> holder, int number);

  std::unique_ptr<ChildProcess> holder_;  // keeps the namespaces alive, and does nothing
  const std::string address_;
  const std::string hub_interface_;  // the other end of eth0
};

// Hosts that reach each other only through a hub, which is where the test itself runs: a fault of
// the network is a rule of the hub. The rules are for what passes between hosts; the test's own
// calls to them always go through.
//
// The kernel removes all of it when the program ends, however it ends. Not thread-safe.
class TestNetwork {
 public:
  // Moves the calling thread, and all threads it starts from then on, into a new network namespace,
  // for good. At most once in a program, before it has a second thread. PERMISSION_DENIED where
  // this program may not have namespaces, NOT_FOUND where a tool is not installed: a test is
  // skipped for these two, and for nothing else.
  static absl::StatusOr<std::unique_ptr<TestNetwork>> Create(int hosts);

  const TestHost& host(int number) const { return *hosts_[static_cast<std::size_t>(number)]; }

  // Each of the next five replaces all rules before it.
  //
  // No packet passes between the two, either way, and nobody is told.
  absl::Status Cut(const TestHost& a, const TestHost& b);
  // The same, but TCP packets from and to these ports of `server` pass.
  absl::Status CutAllBut(const TestHost& client,
                         const TestHost& server,
                         const std::vector<int>& ports);
  // Every TCP packet but those of this port is answered with a reset.
  absl::Status ResetAllBut(const TestHost& client, const TestHost& server, int port);
  // A firewall between the two that has just started and does not know the TCP connections that
  // there are: their packets are lost, those of new ones pass.
  absl::Status Forget(const TestHost& a, const TestHost& b);
  // This share of the packets between hosts is lost, at random.
  absl::Status Lose(int percent);
  // Every packet passes.
  absl::Status Heal();

  // Towards this host no more than this passes; what does not fit into 100 ms is lost.
  absl::Status SetRate(const TestHost& host, int kbit_per_second);
  absl::Status ClearRate(const TestHost& host);  // also when none is set
  // Every packet between the two passes a relay on its way, until it is cleared. NOT_FOUND where
  // the machine has no TUN device.
  absl::Status SetDelay(const TestHost& a, const TestHost& b, const DelayRelay::Times& times);
  absl::Status ClearDelay();  // also when none is set
  // Of every link: the longest packet, in bytes, at least 576; 1500 at first.
  absl::Status SetMtu(int bytes);

 private:
  TestNetwork() = default;
  absl::Status Connect(const TestHost& host);
  static absl::Status SetRules(const std::string& rules);

  std::vector<std::unique_ptr<TestHost>> hosts_;
  std::unique_ptr<DelayRelay> relay_;
};

}  // namespace baton
