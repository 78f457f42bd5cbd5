#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/flags.h"
#include "common/log.h"
#include "frontend/grpc_server.h"

namespace baton {

enum class ServerKind { kRouter, kWorker };

// What every server program takes from its command line.
struct ServerFlags {
  std::string listen;
  std::string advertise_host;  // workers only
  std::string model;           // file, directory or name; empty: the example model
  std::string cache;           // folder that holds `models/`
  std::string log_level = "info";
  std::string log_format = "text";
  TlsFiles tls;
  std::int64_t drain_grace_ms = 30'000;
  std::string metrics_listen;  // host:port; empty: no metrics
  std::string trace_file;      // path; empty: no trace
  bool channelz = false;
  std::string zone;  // residency zone; empty: none

  // A flag of the public surface whose behaviour comes later: a value is refused, not ignored.
  std::string http_listen;
};

// "$HOME/.cache/baton"; the default of --cache, which BATON_CACHE overrides. `home` may be null.
std::string DefaultCacheFolder(const char* home);

// Adds the shared flags and their checks, among them that a wildcard --listen of a worker needs
// --advertise-host. The values in `settings` are the defaults (main sets `cache`, and `listen` when
// it is not the kind's usual one). `settings` must outlive Parse.
void AddServerFlags(Flags& flags, ServerKind kind, ServerFlags& settings);

// Adds the check that a flag of the public surface that this version does not have stays empty.
void RefuseForNow(Flags& flags, std::string name, std::string* target);

// From checked flags.
LogOptions MakeLogOptions(const ServerFlags& settings, std::string component);
GrpcServerOptions MakeGrpcServerOptions(const ServerFlags& settings, std::string role);

}  // namespace baton
