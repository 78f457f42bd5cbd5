#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "baton/v1/worker.pb.h"
#include "common/flags.h"
#include "engine/engine.h"
#include "frontend/server_flags.h"
#include "kernels/backends.h"

namespace baton {

// What both kinds of worker take from their command line.
struct WorkerFlags {
  ServerFlags server;
  std::string kv_listen = "127.0.0.1:0";
  std::string kv_transport = "auto";
  std::string device = "auto";
  std::string cpu_isa = "auto";
  std::int64_t threads = 1;
  std::size_t kv_pool_bytes = 0;  // 0: 2 GiB on a CPU, what is free on a GPU
  std::int64_t max_batch_tokens = 256;
  std::int64_t max_sequences = 64;
  std::string prefix_cache = "on";
  std::int64_t stalled_after_ms = 3000;
  std::vector<std::string> routers;  // host:port, to register with
};

// Adds the flags and their checks. `settings` must outlive Parse; its values are the defaults.
void AddWorkerFlags(Flags& flags, v1::Role role, WorkerFlags& settings);

// The gRPC door is for other machines, and only this one reaches the KV door: right where all
// workers are here, else every prompt is computed where it decodes.
bool OnlyThisMachineFetches(const WorkerFlags& settings);

// From checked flags.
BackendOptions MakeBackendOptions(const WorkerFlags& settings);
EngineOptions MakeEngineOptions(const WorkerFlags& settings, const ChosenBackend& backend);

}  // namespace baton
