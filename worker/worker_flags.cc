#include "worker/worker_flags.h"

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

std::string HostOf(const std::string& host_port) {
  return host_port.substr(0, host_port.rfind(':'));
}

// Peers that cannot come to the KV door are not seen to fail: they compute every prompt themselves.
absl::Status CheckKvListen(const WorkerFlags& settings, v1::Role role) {
  if (absl::Status status = CheckHostPort(settings.kv_listen); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--kv-listen: ", std::string(status.message())));
  }
  const std::string host = HostOf(settings.kv_listen);
  const std::string& advertised = settings.server.advertise_host;
  if (IsWildcardHost(host) && advertised.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--advertise-host: is needed when --kv-listen is the wildcard ", host,
                     ": say under which name or address others reach this machine"));
  }
  // With grpc a proxy at the advertised host may lead here; UCX passes none. Nobody comes to a
  // decode worker's.
  if (role == v1::ROLE_PREFILL && IsLoopbackHost(host) && !advertised.empty() &&
      !IsLoopbackHost(advertised) && settings.kv_transport != "grpc") {
    return absl::InvalidArgumentError(
        absl::StrCat("--kv-listen: ", host, " is reached from this machine alone, but ", advertised,
                     " of --advertise-host is for others: give it an address that they reach, or "
                     "0.0.0.0"));
  }
  return absl::OkStatus();
}

}  // namespace

bool OnlyThisMachineFetches(const WorkerFlags& settings) {
  return IsLoopbackHost(HostOf(settings.kv_listen)) && settings.server.advertise_host.empty() &&
         !IsLoopbackHost(HostOf(settings.server.listen));
}

void AddWorkerFlags(Flags& flags, v1::Role role, WorkerFlags& settings) {
  AddServerFlags(flags, ServerKind::kWorker, settings.server);
  flags.Text("kv-listen", &settings.kv_listen, "host:port of the KV listener; port 0: a free one");
  flags.Choice("kv-transport", &settings.kv_transport, {"auto", "rdma", "mapped", "tcp", "grpc"},
               "how KV blocks travel between workers; auto takes the best that both have");
  flags.Choice("device", &settings.device, {"auto", "cpu", "cuda", "emulated"},
               "where the model runs; auto takes a GPU where this build and machine have one, else "
               "the CPU; emulated runs the GPU's kernels on the CPU, slowly, for tests");
  flags.Choice(
      "cpu-isa", &settings.cpu_isa, {"auto", "amx", "avx512bf16", "avx2", "plain"},
      "instructions of the CPU backend; auto takes the fastest that processor and system offer");
  flags.Integer("threads", &settings.threads, 1, 256, "compute threads, 1 to 256");
  flags.Bytes("kv-pool-size", &settings.kv_pool_bytes,
              "memory for KV blocks; 0: 2GiB on a CPU, on a GPU what is free after the weights");
  flags.Integer("max-batch-tokens", &settings.max_batch_tokens, 1, 8192,
                "rows of one step, decode and prefill together, 1 to 8192");
  flags.Integer("max-sequences", &settings.max_sequences, 1, 4096,
                "sequences running at once, 1 to 4096");
  flags.Choice("prefix-cache", &settings.prefix_cache, {"on", "off"},
               "keep finished KV blocks for prompts that begin like them");
  flags.Integer("stalled-after-ms", &settings.stalled_after_ms, 500, 3'600'000,
                "an engine that begins no operation for so long counts as hung: the worker is "
                "NOT_SERVING and takes nothing until it goes on; above the longest operation of "
                "a step of --max-batch-tokens rows");
  flags.TextList("router", &settings.routers,
                 "host:port of a router to register with; a name stands for all its addresses, "
                 "which are looked up again every few seconds");

  flags.Check([&settings, role] { return CheckKvListen(settings, role); });
  flags.Check([&settings]() -> absl::Status {
    if (settings.max_sequences > settings.max_batch_tokens) {
      return absl::InvalidArgumentError(absl::StrCat(
          "max-sequences (", settings.max_sequences, ") is above max-batch-tokens (",
          settings.max_batch_tokens, "): a step must have a row for every running sequence"));
    }
    return absl::OkStatus();
  });
  flags.Check([&settings]() -> absl::Status {
    for (const std::string& router : settings.routers) {
      absl::Status status = CheckHostPort(router);
      if (status.ok() && router.ends_with(":0")) {
        status = absl::InvalidArgumentError(absl::StrCat("\"", router, "\" has no port"));
      }
      if (!status.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("--router: ", std::string(status.message())));
      }
    }
    return absl::OkStatus();
  });
}

BackendOptions MakeBackendOptions(const WorkerFlags& settings) {
  return {.device = settings.device,
          .cpu = {.isa = settings.cpu_isa, .threads = static_cast<int>(settings.threads)}};
}

EngineOptions MakeEngineOptions(const WorkerFlags& settings, const ChosenBackend& backend) {
  EngineOptions options{.limits = {.max_batch_tokens = static_cast<int>(settings.max_batch_tokens),
                                   .max_sequences = static_cast<int>(settings.max_sequences)},
                        .prefix_cache = settings.prefix_cache == "on"};
  if (settings.kv_pool_bytes != 0) {
    options.kv_pool_bytes = settings.kv_pool_bytes;
  } else if (backend.device != nullptr) {
    options.kv_pool_bytes = std::nullopt;
  }
  return options;
}

}  // namespace baton
