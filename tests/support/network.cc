#include "tests/support/network.h"

#include <sched.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "tests/support/patience.h"

namespace baton {
namespace {

constexpr char kShell[] = "/bin/sh";
constexpr char kNsenter[] = "/usr/bin/nsenter";
constexpr char kPath[] = "export PATH=/usr/sbin:/usr/bin:/sbin:/bin\n";

constexpr int kUsualMtu = 1500;
constexpr int kRelayTable = 77;  // of routes

std::string HubAddress(int number) {
  return absl::StrCat("10.77.", number, ".1");
}

// Segments travel one by one, as on a wire: a packet that is lost is not 64 KiB of them.
std::string LinkSettings(int mtu_bytes) {
  return absl::StrCat(" mtu ", mtu_bytes, " gso_max_segs 1");
}

absl::Status Run(std::vector<std::string> command, const std::string& script) {
  command.insert(command.end(), {kShell, "-ec", absl::StrCat(kPath, script)});
  ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> shell,
                   ChildProcess::Start(command[0], {command.begin() + 1, command.end()}));
  const std::optional<ProcessEnd> end = shell->WaitForEnd(kPatience);
  if (!end.has_value() || end->code != 0) {
    return absl::UnavailableError(absl::StrCat(script, ": ", shell->ErrorOutput()));
  }
  return absl::OkStatus();
}

absl::Status RunHere(const std::string& script) {
  return Run({}, script);
}

// nft's words for packets of one direction.
std::string FromTo(const TestHost& from, const TestHost& to) {
  return absl::StrCat("ip saddr ", from.address(), " ip daddr ", to.address(), " ");
}

// `verdict` for every TCP packet between the two, but to and from these ports of `server`.
std::string AllBut(const TestHost& client,
                   const TestHost& server,
                   const std::vector<int>& ports,
                   const std::string& verdict) {
  const std::string others = absl::StrCat("!= { ", absl::StrJoin(ports, ", "), " } ");
  return absl::StrCat(FromTo(client, server), "tcp dport ", others, verdict, "\n",
                      FromTo(server, client), "tcp sport ", others, verdict, "\n");
}

}  // namespace

TestHost::TestHost(std::unique_ptr<ChildProcess> holder, int number)
    : holder_(std::move(holder)),
      address_(absl::StrCat("10.77.", number, ".2")),
      hub_interface_(absl::StrCat("hub", number)) {}

std::vector<std::string> TestHost::Entry() const {
  return {kNsenter, absl::StrCat("--target=", holder_->pid()), "--net", "--mount", "--"};
}

absl::Status TestHost::Run(const std::string& script) const {
  return baton::Run(Entry(), script);
}

absl::StatusOr<std::unique_ptr<TestNetwork>> TestNetwork::Create(int hosts) {
  if (unshare(CLONE_NEWNET) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("no network namespace: ", strerror(errno)));
  }
  if (!RunHere("for tool in ip tc ss nft unshare nsenter; do command -v $tool; done").ok()) {
    return absl::NotFoundError("iproute2, nftables or util-linux is not installed");
  }
  RETURN_IF_ERROR(RunHere("ip link set lo up\necho 1 > /proc/sys/net/ipv4/ip_forward"));
  std::unique_ptr<TestNetwork> network(new TestNetwork());
  for (int i = 0; i < hosts; ++i) {
    ASSIGN_OR_RETURN(
        std::unique_ptr<ChildProcess> holder,
        ChildProcess::Start("/usr/bin/unshare",
                            {"--net", "--mount", "--propagation", "private", kShell, "-ec",
                             absl::StrCat(kPath,
                                          "mount -t sysfs none /sys\n"
                                          "echo there\n"
                                          "exec tail -f /dev/null")}));
    RETURN_IF_ERROR(holder->ReadLine(kPatience).status());
    network->hosts_.push_back(std::unique_ptr<TestHost>(new TestHost(std::move(holder), i)));
    RETURN_IF_ERROR(network->Connect(*network->hosts_.back()));
  }
  RETURN_IF_ERROR(network->Heal());
  return network;
}

absl::Status TestNetwork::Connect(const TestHost& host) {
  const int number = static_cast<int>(hosts_.size()) - 1;
  const std::string& hub = host.hub_interface_;
  RETURN_IF_ERROR(
      RunHere(absl::StrCat("ip link add name ", hub, " type veth peer name eth0 netns ",
                           host.holder_->pid(), "\nip addr add ", HubAddress(number), "/24 dev ",
                           hub, "\nip link set ", hub, " up", LinkSettings(kUsualMtu))));
  // One congestion control, whatever the default; a namespace may choose only the unrestricted
  // ones.
  return host.Run(absl::StrCat("ip link set lo up\nip addr add ", host.address(),
                               "/24 dev eth0\nip link set eth0 up", LinkSettings(kUsualMtu),
                               "\nip route add default via ", HubAddress(number),
                               "\necho reno > /proc/sys/net/ipv4/tcp_congestion_control"));
}

absl::Status TestNetwork::SetRules(const std::string& rules) {
  return RunHere(
      absl::StrCat("nft -f - <<'END'\n"
                   "table ip faults\n"
                   "delete table ip faults\n"
                   "table ip faults { chain forward {\n"
                   "type filter hook forward priority 0;\n",
                   rules, "}\n}\nEND"));
}

absl::Status TestNetwork::Cut(const TestHost& a, const TestHost& b) {
  return SetRules(absl::StrCat(FromTo(a, b), "drop\n", FromTo(b, a), "drop\n"));
}

absl::Status TestNetwork::CutAllBut(const TestHost& client,
                                    const TestHost& server,
                                    const std::vector<int>& ports) {
  return SetRules(AllBut(client, server, ports, "drop"));
}

absl::Status TestNetwork::ResetAllBut(const TestHost& client, const TestHost& server, int port) {
  return SetRules(AllBut(client, server, {port}, "reject with tcp reset"));
}

absl::Status TestNetwork::Forget(const TestHost& a, const TestHost& b) {
  // A packet from the middle of a connection makes it known while "loose" is on, and its switch is
  // there only once a rule asks for the state: until it is off nothing passes.
  const std::string from_a = FromTo(a, b);
  const std::string from_b = FromTo(b, a);
  RETURN_IF_ERROR(SetRules(
      absl::StrCat(from_a, "ct state invalid drop\n", from_a, "drop\n", from_b, "drop\n")));
  RETURN_IF_ERROR(RunHere("echo 0 > /proc/sys/net/netfilter/nf_conntrack_tcp_loose"));
  return SetRules(
      absl::StrCat(from_a, "ct state invalid drop\n", from_b, "ct state invalid drop\n"));
}

absl::Status TestNetwork::Lose(int percent) {
  return SetRules(absl::StrCat("numgen random mod 100 < ", percent, " drop\n"));
}

absl::Status TestNetwork::Heal() {
  return SetRules("");
}

absl::Status TestNetwork::SetRate(const TestHost& host, int kbit_per_second) {
  return RunHere(absl::StrCat("tc qdisc replace dev ", host.hub_interface_, " root tbf rate ",
                              kbit_per_second, "kbit burst 16kb latency 100ms"));
}

absl::Status TestNetwork::ClearRate(const TestHost& host) {
  return RunHere(
      absl::StrCat("tc qdisc del dev ", host.hub_interface_, " root 2>/dev/null || true"));
}

absl::Status TestNetwork::SetDelay(const TestHost& a,
                                   const TestHost& b,
                                   const DelayRelay::Times& times) {
  RETURN_IF_ERROR(ClearDelay());
  ASSIGN_OR_RETURN(relay_, DelayRelay::Create("relay", times));
  const auto rule = [](const TestHost& from, const TestHost& to) {
    return absl::StrCat("ip rule add iif ", from.hub_interface_, " from ", from.address(), " to ",
                        to.address(), " lookup ", kRelayTable, "\n");
  };
  return RunHere(absl::StrCat("ip link set relay up\nip route add default dev relay table ",
                              kRelayTable, "\n", rule(a, b), rule(b, a)));
}

absl::Status TestNetwork::ClearDelay() {
  // Its route goes with the interface.
  relay_.reset();
  return RunHere(
      absl::StrCat("while ip rule del lookup ", kRelayTable, " 2>/dev/null; do :; done"));
}

absl::Status TestNetwork::SetMtu(int bytes) {
  const std::string settings = LinkSettings(bytes);
  for (const std::unique_ptr<TestHost>& host : hosts_) {
    RETURN_IF_ERROR(RunHere(absl::StrCat("ip link set ", host->hub_interface_, settings)));
    RETURN_IF_ERROR(host->Run(absl::StrCat("ip link set eth0", settings)));
  }
  return absl::OkStatus();
}

}  // namespace baton
