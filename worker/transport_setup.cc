#include "worker/transport_setup.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kernels/cpu/host_memory.h"
#include "kvtransfer/grpc_stream/grpc_stream_transport.h"
#include "kvtransfer/mapped/mapped_transport.h"
#include "kvtransfer/transport_set.h"
#include "kvtransfer/ucx/ucx_transport.h"

namespace baton {
namespace {

// Of a checked host:port.
std::string HostOf(const std::string& host_port) {
  return host_port.substr(0, host_port.rfind(':'));
}

// Brackets of an IPv6 host are not part of it.
ucx::TransportOptions ListenOptions(const std::string& host_port,
                                    const std::string& advertise_host) {
  std::string host = HostOf(host_port);
  if (host.starts_with('[')) {
    host = host.substr(1, host.size() - 2);
  }
  int port = 0;
  const bool parsed = absl::SimpleAtoi(host_port.substr(host_port.rfind(':') + 1), &port);
  BATON_CHECK(parsed);
  return {.listen_host = host, .port = port, .advertise_host = advertise_host};
}

std::string AnyPortOf(const std::string& host_port) {
  return absl::StrCat(HostOf(host_port), ":0");
}

// What this machine lacks, by kind.
std::vector<std::pair<TransportKind, std::string>> FindAbsent(bool host_pool) {
  std::vector<std::pair<TransportKind, std::string>> absent;
  if (ucx::RdmaDevices rdma = ucx::FindRdma(); !rdma.why.empty()) {
    if (rdma.any) {
      // Whoever has put devices into a machine wants them used.
      LogEvent(LogLevel::kWarn, "transport.rdma_down", {{"why", rdma.why}});
    }
    absent.emplace_back(TransportKind::kRdma, std::move(rdma.why));
  } else if (!host_pool) {
    absent.emplace_back(TransportKind::kRdma, "the KV pool is in device memory");
  }
  if (!host_pool) {
    absent.emplace_back(TransportKind::kMapped, "the KV pool is in device memory");
  }
  if (const absl::Status usable = ucx::CheckUsable(); !usable.ok()) {
    absent.emplace_back(TransportKind::kTcp, std::string(usable.message()));
  }
  return absent;
}

// A pool in a file, or, where mapping is not insisted on, without one.
absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocatePool(std::size_t bytes,
                                                           bool forced,
                                                           std::optional<mapped::PoolFile>& file) {
  absl::StatusOr<std::unique_ptr<SharedHostMemory>> memory = AllocateSharedHostMemory(bytes);
  if (memory.ok()) {
    file = mapped::PoolFile{.fd = (*memory)->fd(),
                            .base = (*memory)->data(),
                            .pool_bytes = bytes,
                            .file_bytes = (*memory)->file_bytes()};
    return std::unique_ptr<DeviceMemory>(*std::move(memory));
  }
  if (forced) {
    return absl::FailedPreconditionError(
        absl::StrCat("kv-transport: mapped needs the KV pool in a memory file: ",
                     std::string(memory.status().message())));
  }
  LogEvent(LogLevel::kWarn, "transport.pool_not_mappable", {{"why", memory.status()}});
  return AllocateHostMemory(bytes);
}

}  // namespace

absl::StatusOr<TransportSetup> SetUpTransport(const WorkerFlags& flags,
                                              v1::Role role,
                                              bool host_pool) {
  TransportSetup setup;
  setup.policy.forced = ParseTransportKind(flags.kv_transport);  // nullopt: auto
  setup.policy.absent = FindAbsent(host_pool);
  const std::optional<TransportKind> forced = setup.policy.forced;
  if (forced) {
    if (const std::string* why = setup.policy.WhyAbsent(*forced)) {
      return absl::FailedPreconditionError(
          absl::StrCat("kv-transport: ", flags.kv_transport, " is not to be had here: ", *why));
    }
  }
  if (role == v1::ROLE_PREFILL && OnlyThisMachineFetches(flags)) {
    LogEvent(LogLevel::kWarn, "transport.kv_door_local",
             {{"kv_listen", flags.kv_listen},
              {"listen", flags.server.listen},
              {"why", "decode workers of other machines cannot fetch from here: --kv-listen"}});
  }
  const auto has = [&](TransportKind kind) { return setup.policy.WhyAbsent(kind) == nullptr; };
  const std::string& advertise_host = flags.server.advertise_host;

  // The first one takes --kv-listen.
  std::vector<TransportFactory> members;
  const auto listen = [&] {
    return members.empty() ? flags.kv_listen : AnyPortOf(flags.kv_listen);
  };
  const bool maps = !forced || forced == TransportKind::kMapped;
  const bool reads = (!forced || forced == TransportKind::kRdma) && has(TransportKind::kRdma);
  if ((maps || forced == TransportKind::kTcp) && has(TransportKind::kTcp)) {
    ucx::TransportOptions options = ListenOptions(listen(), advertise_host);
    // Where RDMA reads blocks, messages are for when it has failed; where it may not, they are to
    // be as fast as the network allows.
    options.lanes = reads ? ucx::Lanes::kTcp : ucx::Lanes::kAny;
    members.push_back(ucx::MakeTransport(std::move(options)));
  }
  if (reads) {
    ucx::TransportOptions options = ListenOptions(listen(), advertise_host);
    options.lanes = ucx::Lanes::kRdma;
    members.push_back(ucx::MakeTransport(std::move(options)));
  }
  if (!forced || forced == TransportKind::kGrpc || members.empty()) {
    members.push_back(grpc_stream::MakeTransport(
        {.listen = listen(), .advertise_host = advertise_host, .tls = flags.server.tls}));
  }
  setup.factory = MakeTransportSet(std::move(members));

  if (maps && has(TransportKind::kMapped)) {
    const auto slot = std::make_shared<std::optional<mapped::PoolFile>>();
    if (role == v1::ROLE_PREFILL) {
      setup.allocate_pool = [slot, insist = forced.has_value()](std::size_t bytes) {
        return AllocatePool(bytes, insist, *slot);
      };
    }
    setup.factory = [messages = std::move(setup.factory), slot](TransportHandler& handler) {
      return mapped::MakeTransport(messages, *slot)(handler);
    };
  }
  std::vector<std::string> without;
  for (const auto& [kind, why] : setup.policy.absent) {
    without.push_back(absl::StrCat(std::string(ToString(kind)), " (", why, ")"));
  }
  LogEvent(LogLevel::kInfo, "transport.allowed",
           {{"transports", absl::StrJoin(AllowedTransports(setup.policy), ",")},
            {"reason", forced ? "asked for by --kv-transport" : "all that this machine has"},
            {"without", absl::StrJoin(without, ", ")}});
  return setup;
}

std::vector<std::string> AllowedTransports(const TransportPolicy& policy) {
  std::vector<std::string> allowed;
  for (const TransportKind kind : kTransportKinds) {
    if (policy.Allows(kind) && policy.WhyAbsent(kind) == nullptr) {
      allowed.emplace_back(ToString(kind));
    }
  }
  return allowed;
}

absl::Status CheckTransports(const TransportPolicy& policy,
                             const std::vector<std::string>& theirs) {
  const std::vector<std::string> ours = AllowedTransports(policy);
  const bool shared = std::any_of(ours.begin(), ours.end(), [&](const std::string& one) {
    return std::find(theirs.begin(), theirs.end(), one) != theirs.end();
  });
  if (theirs.empty() || shared) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("kv_transports: no common transport for KV blocks: ours ",
                   absl::StrJoin(ours, ", "), "; theirs ", absl::StrJoin(theirs, ", ")));
}

}  // namespace baton
