#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

struct WorkerProbeOptions {
  std::string program;  // baton-decode
  std::string model;
  std::string cache;
  std::string isa = "auto";
  std::size_t kv_pool_bytes = std::size_t{256} << 20;
};

// What one start of a worker process took. All memory is resident memory besides the KV pool, which
// is resident from the start; pages of the model file that the process has mapped are in it.
struct WorkerFootprint {
  double start_seconds = 0;             // from exec to the ready line
  double start_cpu_seconds = 0;         // processor time by then
  std::size_t resident_bytes = 0;       // after a prompt of 512 tokens and 16 new ones
  std::size_t resident_file_bytes = 0;  // of these, pages of files, which other processes share
  std::size_t resident_at_ready_bytes = 0;
};

// Starts a worker with one thread, waits until it is ready, has it complete one request, and ends
// it.
absl::StatusOr<WorkerFootprint> ProbeWorker(const WorkerProbeOptions& options);

}  // namespace baton
