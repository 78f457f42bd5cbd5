#include "frontend/server_flags.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace baton {
namespace {

absl::Status CheckListen(ServerKind kind, const ServerFlags& settings) {
  if (const absl::Status status = CheckHostPort(settings.listen); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--listen: ", std::string(status.message())));
  }
  if (IsWildcardHost(settings.advertise_host)) {
    return absl::InvalidArgumentError(absl::StrCat("--advertise-host: \"", settings.advertise_host,
                                                   "\" is no address that others can reach"));
  }
  const std::string host = settings.listen.substr(0, settings.listen.rfind(':'));
  if (kind == ServerKind::kWorker && IsWildcardHost(host) && settings.advertise_host.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--advertise-host: is needed when --listen is the wildcard ", host,
                     ": say under which name or address others reach this machine"));
  }
  return absl::OkStatus();
}

absl::Status CheckZone(const std::string& zone) {
  constexpr std::size_t kMostBytes = 128;
  return zone.size() <= kMostBytes
             ? absl::OkStatus()
             : absl::InvalidArgumentError(
                   absl::StrCat("--zone: has ", zone.size(), " bytes; at most ", kMostBytes));
}

// How a server shows what it does.
void AddProfileFlags(Flags& flags, ServerKind kind, ServerFlags& settings) {
  flags.Text("metrics-listen", &settings.metrics_listen,
             "host:port for Prometheus, GET /metrics over HTTP; port 0 takes a free one; empty: "
             "none");
  flags.Text("trace-file", &settings.trace_file,
             kind == ServerKind::kRouter
                 ? "file that is overwritten with a line of JSON for each span of a request; ends "
                   "at 512 MiB; empty: none"
                 : "file that is overwritten with a trace of every step and the spans of every "
                   "request: lines of JSON when its name ends in .jsonl, else a Chrome trace with "
                   "every operation as well; ends at 512 MiB; empty: none");
  flags.Switch("channelz", &settings.channelz,
               "serve grpc.channelz.v1: the state of every connection, to whoever may connect");
  flags.Check([&settings]() -> absl::Status {
    if (settings.metrics_listen.empty()) {
      return absl::OkStatus();
    }
    const absl::Status status = CheckHostPort(settings.metrics_listen);
    return status.ok() ? status
                       : absl::InvalidArgumentError(
                             absl::StrCat("--metrics-listen: ", std::string(status.message())));
  });
}

}  // namespace

std::string DefaultCacheFolder(const char* home) {
  return absl::StrCat(home == nullptr ? "." : home, "/.cache/baton");
}

void RefuseForNow(Flags& flags, std::string name, std::string* target) {
  flags.Text(name, target, "comes with a later version; a value is refused");
  flags.Check([name = std::move(name), target] {
    if (target->empty()) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("--", name, ": is not in this version; leave it out"));
  });
}

void AddServerFlags(Flags& flags, ServerKind kind, ServerFlags& settings) {
  if (settings.listen.empty()) {
    settings.listen = kind == ServerKind::kRouter ? "127.0.0.1:8000" : "127.0.0.1:0";
  }
  flags.Text(
      "listen", &settings.listen,
      kind == ServerKind::kRouter
          ? "host:port for gRPC; port 0 takes a free one. Health (grpc.health.v1) is SERVING "
            "while some decode worker can get requests"
          : "host:port for gRPC; port 0 takes a free one. Health (grpc.health.v1) is SERVING "
            "from the loaded model to SIGTERM, but not while the engine hangs");
  if (kind == ServerKind::kWorker) {
    flags.Text("advertise-host", &settings.advertise_host,
               "host that peers and routers are told; empty: that of --listen");
  }
  flags.Text(
      "model", &settings.model,
      "GGUF file, Hugging Face directory, or a name in <cache>/models; empty: the example model");
  flags.Text("cache", &settings.cache, "folder that holds models/");
  flags.Choice("log-level", &settings.log_level, {"debug", "info", "warn", "error"},
               "least level that is logged");
  flags.Choice("log-format", &settings.log_format, {"text", "json"}, "form of a log line");
  flags.Text(
      "tls-cert", &settings.tls.certificate,
      "PEM certificate chain of this server; this file and the next two are read again when they "
      "change");
  flags.Text("tls-key", &settings.tls.key, "PEM key of --tls-cert");
  flags.Text("tls-ca", &settings.tls.authority,
             "PEM authorities; clients must then show a certificate of one of them");
  flags.Integer("drain-grace-ms", &settings.drain_grace_ms, 0, 86'400'000,
                "time for running requests after SIGTERM; then they end with UNAVAILABLE and the "
                "exit code is 3");
  AddProfileFlags(flags, kind, settings);
  flags.Text("zone", &settings.zone,
             kind == ServerKind::kRouter
                 ? "residency zone of requests that name none; empty: none"
                 : "residency zone: requests that name another one are not served here");
  flags.Check([&settings] { return CheckZone(settings.zone); });
  if (kind == ServerKind::kRouter) {
    RefuseForNow(flags, "http-listen", &settings.http_listen);
  }
  flags.Check([kind, &settings]() -> absl::Status {
    RETURN_IF_ERROR(CheckListen(kind, settings));
    return CheckTlsFiles(settings.tls, /*server=*/true);
  });
}

LogOptions MakeLogOptions(const ServerFlags& settings, std::string component) {
  LogOptions options{.component = std::move(component)};
  // The flag's own check has refused every other word.
  if (!ParseLogLevel(settings.log_level, &options.level).ok()) {
    options.level = LogLevel::kInfo;
  }
  options.format = settings.log_format == "json" ? LogFormat::kJson : LogFormat::kText;
  return options;
}

GrpcServerOptions MakeGrpcServerOptions(const ServerFlags& settings, std::string role) {
  GrpcServerOptions options{.role = std::move(role),
                            .listen = settings.listen,
                            .advertise_host = settings.advertise_host,
                            .tls = settings.tls,
                            .channelz = settings.channelz,
                            .drain_grace = std::chrono::milliseconds(settings.drain_grace_ms)};
  if (options.role != "router") {
    // Blocks must not be kept for a minute for a router that the network has taken away. Not
    // sooner: a gRPC client in whose calls nobody waits looks at its connection every five seconds.
    options.ping_after = std::chrono::seconds(3);
    options.ping_answer = std::chrono::seconds(7);
  }
  return options;
}

}  // namespace baton
