#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/measured_child.h"
#include "common/clock.h"

namespace baton {

// Servers that a comparison starts itself: every worker has one thread and a core of its own.
struct FleetOptions {
  std::string programs;  // folder of baton-decode, baton-prefill and baton-router
  std::string model;
  std::string cache;
  std::string device = "cpu";
  std::vector<std::string> gpus;  // what CUDA_VISIBLE_DEVICES names; one each as worker_cores
  std::string kv_transport = "auto";
  std::string kv_pool_size = "512MiB";
  int decode_workers = 1;
  int prefill_workers = 1;
  int max_batch_tokens = 256;
  std::vector<int> worker_cores;  // prefill workers first; one each
  std::vector<int> shared_cores;  // of the router
};

// Prefill and decode workers and a router over them, ended by the destructor.
//
// Not thread-safe; started, and kept alive, by one thread (see MeasuredChild).
class BenchFleet {
 public:
  // When the router has served a request of every path that this fleet has.
  static absl::StatusOr<std::unique_ptr<BenchFleet>> Start(const FleetOptions& options);

  const std::string& address() const { return address_; }  // of the router
  bool splits() const { return splits_; }                  // it has prefill workers
  // Processor time of the router so far.
  double RouterCpuSeconds() const { return servers_.back()->CpuSeconds(); }

 private:
  BenchFleet() = default;
  absl::StatusOr<std::string> StartServer(const std::vector<std::string>& command,
                                          const std::vector<int>& cores);
  absl::Status AwaitPaths() const;

  bool splits_ = false;
  std::string address_;
  std::vector<std::unique_ptr<MeasuredChild>> servers_;  // the router last
};

}  // namespace baton
