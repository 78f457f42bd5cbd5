#include "bench/bench_fleet.h"

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/cores.h"
#include "client/completions_client.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace baton {
namespace {

constexpr Duration kStartPatience = std::chrono::minutes(2);
constexpr auto kRequestPatience = std::chrono::seconds(30);
constexpr auto kRetryEvery = std::chrono::milliseconds(50);

bool Prefills(const FleetOptions& options, std::size_t worker) {
  return worker < static_cast<std::size_t>(options.prefill_workers);
}

std::vector<std::string> WorkerCommand(const FleetOptions& options, std::size_t worker) {
  std::vector<std::string> command;
  if (!options.gpus.empty()) {
    command = {"/usr/bin/env", "CUDA_VISIBLE_DEVICES=" + options.gpus[worker]};
  }
  const std::vector<std::string> flags{"--listen",
                                       "127.0.0.1:0",
                                       "--kv-listen",
                                       "127.0.0.1:0",
                                       "--model",
                                       options.model,
                                       "--cache",
                                       options.cache,
                                       "--device",
                                       options.device,
                                       "--threads",
                                       "1",
                                       "--kv-transport",
                                       options.kv_transport,
                                       "--kv-pool-size",
                                       options.kv_pool_size,
                                       "--max-batch-tokens",
                                       absl::StrCat(options.max_batch_tokens),
                                       "--log-level",
                                       "warn"};
  command.push_back(options.programs +
                    (Prefills(options, worker) ? "/baton-prefill" : "/baton-decode"));
  command.insert(command.end(), flags.begin(), flags.end());
  return command;
}

v1::CompleteRequest ProbeRequest(v1::Path path) {
  v1::CompleteRequest request;
  for (const std::uint32_t id : {101, 102, 103}) {
    request.mutable_tokens()->add_ids(id);
  }
  request.mutable_sampling()->set_temperature(0);
  request.set_max_tokens(2);
  request.set_path(path);
  return request;
}

}  // namespace

absl::StatusOr<std::string> BenchFleet::StartServer(const std::vector<std::string>& command,
                                                    const std::vector<int>& cores) {
  const ThreadPin pin(cores);
  ASSIGN_OR_RETURN(std::unique_ptr<MeasuredChild> server, MeasuredChild::Start(command));
  servers_.push_back(std::move(server));
  ASSIGN_OR_RETURN(const std::string ready, servers_.back()->FirstLine(kStartPatience));
  return ReadyDoor(ready, "grpc");
}

// A router learns of its workers in its own time: a path is there when a request that forces it is
// answered.
absl::Status BenchFleet::AwaitPaths() const {
  ASSIGN_OR_RETURN(const std::unique_ptr<CompletionsClient> client,
                   CompletionsClient::Create(address_, {}));
  const TimePoint deadline = Clock::System().Now() + kStartPatience;
  for (const v1::Path path : {v1::PATH_COLOCATED, v1::PATH_DISAGGREGATED}) {
    if (path == v1::PATH_DISAGGREGATED && !splits_) {
      continue;
    }
    absl::Status status = client->Complete(ProbeRequest(path), kRequestPatience).status();
    while (absl::IsUnavailable(status) && Clock::System().Now() < deadline) {
      std::this_thread::sleep_for(kRetryEvery);
      status = client->Complete(ProbeRequest(path), kRequestPatience).status();
    }
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<BenchFleet>> BenchFleet::Start(const FleetOptions& options) {
  BATON_CHECK(static_cast<int>(options.worker_cores.size()) ==
              options.prefill_workers + options.decode_workers);
  std::unique_ptr<BenchFleet> fleet(new BenchFleet());
  fleet->splits_ = options.prefill_workers > 0;
  std::vector<std::string> router{options.programs + "/baton-router",
                                  "--listen",
                                  "127.0.0.1:0",
                                  "--model",
                                  options.model,
                                  "--cache",
                                  options.cache,
                                  "--log-level",
                                  "warn"};
  for (std::size_t i = 0; i < options.worker_cores.size(); ++i) {
    ASSIGN_OR_RETURN(const std::string address,
                     fleet->StartServer(WorkerCommand(options, i), {options.worker_cores[i]}));
    router.insert(router.end(), {Prefills(options, i) ? "--prefill" : "--decode", address});
  }
  ASSIGN_OR_RETURN(fleet->address_, fleet->StartServer(router, options.shared_cores));
  RETURN_IF_ERROR(fleet->AwaitPaths());
  return fleet;
}

}  // namespace baton
