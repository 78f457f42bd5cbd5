#include "bench/worker_probe.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "bench/measured_child.h"
#include "client/completions_client.h"
#include "common/status_macros.h"

namespace baton {
namespace {

constexpr Duration kReadyPatience = std::chrono::minutes(2);
constexpr Duration kEndPatience = std::chrono::seconds(10);
constexpr auto kRequestPatience = std::chrono::minutes(1);
constexpr std::uint32_t kPromptTokens = 512;
constexpr std::uint32_t kNewTokens = 16;

// A line "VmRSS:  1234 kB" of /proc/<pid>/status.
absl::StatusOr<std::size_t> StatusBytes(pid_t pid, const std::string& key) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    std::istringstream fields(line);
    std::string name;
    std::size_t kib = 0;
    if (fields >> name >> kib && name == key + ":") {
      return kib * 1024;
    }
  }
  return absl::NotFoundError(absl::StrCat("no ", key, " of process ", pid));
}

absl::Status CompleteOnce(const std::string& address) {
  ASSIGN_OR_RETURN(const std::unique_ptr<CompletionsClient> client,
                   CompletionsClient::Create(address, {}));
  v1::CompleteRequest request;
  for (std::uint32_t i = 0; i < kPromptTokens; ++i) {
    request.mutable_tokens()->add_ids(20 + i % 200);
  }
  request.mutable_sampling()->set_temperature(0);
  request.set_max_tokens(kNewTokens);
  request.set_ignore_eos(true);
  return client->Complete(request, kRequestPatience).status();
}

}  // namespace

absl::StatusOr<WorkerFootprint> ProbeWorker(const WorkerProbeOptions& options) {
  const TimePoint begin = Clock::System().Now();
  ASSIGN_OR_RETURN(const std::unique_ptr<MeasuredChild> worker,
                   MeasuredChild::Start({options.program, "--listen", "127.0.0.1:0", "--kv-listen",
                                         "127.0.0.1:0", "--model", options.model, "--cache",
                                         options.cache, "--cpu-isa", options.isa, "--threads", "1",
                                         "--kv-pool-size", absl::StrCat(options.kv_pool_bytes)}));
  ASSIGN_OR_RETURN(const std::string ready, worker->FirstLine(kReadyPatience));
  WorkerFootprint footprint;
  footprint.start_seconds = std::chrono::duration<double>(Clock::System().Now() - begin).count();
  footprint.start_cpu_seconds = worker->CpuSeconds();
  const auto besides_pool = [&]() -> absl::StatusOr<std::size_t> {
    ASSIGN_OR_RETURN(const std::size_t resident, StatusBytes(worker->pid(), "VmRSS"));
    return resident - std::min(resident, options.kv_pool_bytes);
  };
  ASSIGN_OR_RETURN(footprint.resident_at_ready_bytes, besides_pool());
  ASSIGN_OR_RETURN(const std::string address, ReadyDoor(ready, "grpc"));
  RETURN_IF_ERROR(CompleteOnce(address));
  ASSIGN_OR_RETURN(footprint.resident_bytes, besides_pool());
  ASSIGN_OR_RETURN(footprint.resident_file_bytes, StatusBytes(worker->pid(), "RssFile"));
  worker->Signal(SIGTERM);
  const ChildResult end = worker->Wait(kEndPatience);
  if (end.code != 0) {
    return absl::InternalError(absl::StrCat(options.program, ": ", DescribeEnd(end)));
  }
  return footprint;
}

}  // namespace baton
