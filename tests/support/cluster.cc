#include "tests/support/cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "baton/v1/worker.grpc.pb.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "proto/status_conversion.h"
#include "tests/support/wait_until.h"

namespace baton {
namespace {

constexpr Duration kCallTimeout = std::chrono::seconds(5);

template <typename Response, typename Call>
absl::StatusOr<Response> Ask(Call call) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
  Response response;
  const grpc::Status status = call(&context, &response);
  if (!status.ok()) {
    return FromGrpcStatus(status);
  }
  return response;
}

std::string HostOf(const TestHost* host) {
  return host == nullptr ? "127.0.0.1" : host->address();
}

// What follows each of the TLS flags; empty without.
TlsFiles TlsFilesOf(const std::vector<std::string>& flags) {
  const auto after = [&flags](const char* flag) {
    const auto found = std::find(flags.begin(), flags.end(), flag);
    return found == flags.end() ? std::string() : *(found + 1);
  };
  return {.certificate = after("--tls-cert"),
          .key = after("--tls-key"),
          .authority = after("--tls-ca")};
}

std::vector<std::string> Join(std::vector<std::string> first,
                              const std::vector<std::string>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

ServerProcess::ServerProcess(std::string role,
                             std::vector<std::string> flags,
                             std::string failpoint_folder,
                             const TestHost* host)
    : role_(std::move(role)),
      flags_(std::move(flags)),
      failpoint_folder_(std::move(failpoint_folder)),
      host_(host),
      address_(absl::StrCat(HostOf(host), ":", port_.number())),
      tls_(TlsFilesOf(flags_)),
      channel_(MakeTestChannel(address_, tls_)) {
  flags_.insert(flags_.end(), {"--listen", address_, "--log-level", "debug"});
  if (role_ != "router") {
    flags_.insert(flags_.end(),
                  {"--kv-listen", absl::StrCat(HostOf(host), ":", kv_port_.number())});
  }
}

absl::Status ServerProcess::Start() {
  RETURN_IF_ERROR(Launch());
  return AwaitReady();
}

absl::Status ServerProcess::Launch() {
  process_.reset();
  // What stands before the program becomes it: the process stays the same.
  std::vector<std::string> command = host_ == nullptr ? std::vector<std::string>() : host_->Entry();
  const std::string program = ProgramPath("baton-" + role_);
  if (failpoint_folder_.empty()) {
    command.push_back(program);
  } else {
    command.insert(command.end(),
                   {"/usr/bin/env", absl::StrCat("BATON_FAILPOINT_DIR=", failpoint_folder_),
                    program + "-failpoints"});
  }
  command = Join(std::move(command), flags_);
  ASSIGN_OR_RETURN(process_, ChildProcess::Start(command[0], {command.begin() + 1, command.end()}));
  return absl::OkStatus();
}

absl::Status ServerProcess::AwaitReady() {
  ASSIGN_OR_RETURN(ready_line_, process_->ReadLine(kPatience));
  const std::string expected = absl::StrCat("ready ", role_, " grpc=", address_);
  if (!ready_line_.starts_with(expected)) {
    return absl::InternalError(absl::StrCat("not a ready line: ", ready_line_));
  }
  return absl::OkStatus();
}

std::string ServerProcess::Door(const std::string& key) const {
  const std::vector<std::string> words = absl::StrSplit(ready_line_, ' ');
  for (const std::string& word : words) {
    if (word.starts_with(key + "=")) {
      return word.substr(key.size() + 1);
    }
  }
  return "";
}

absl::StatusOr<v1::WorkerDescription> ServerProcess::Describe() const {
  return Ask<v1::WorkerDescription>(
      [this](grpc::ClientContext* context, v1::WorkerDescription* response) {
        return v1::Worker::NewStub(channel_)->Describe(context, {}, response);
      });
}

v1::EngineLoad ServerProcess::Load() const {
  const absl::StatusOr<v1::WorkerDescription> description = Describe();
  return description.ok() ? description->load() : v1::EngineLoad();
}

bool ServerProcess::IsIdle() const {
  const v1::EngineLoad load = Load();
  return load.total_blocks() > 0 && load.free_blocks() == load.total_blocks() &&
         load.waiting_sequences() == 0 && load.running_sequences() == 0 &&
         load.open_handoffs() == 0 && load.quarantined_blocks() == 0;
}

absl::StatusOr<v1::StatusResponse> ServerProcess::Status() const {
  return Ask<v1::StatusResponse>(
      [this](grpc::ClientContext* context, v1::StatusResponse* response) {
        return v1::Admin::NewStub(channel_)->Status(context, {}, response);
      });
}

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::Start(const ClusterOptions& options) {
  std::unique_ptr<Cluster> cluster(new Cluster());
  const std::vector<std::string> worker_flags = Join(
      Join(options.model.Flags(), {"--kv-pool-size", options.kv_pool_size}), options.worker_flags);
  std::vector<std::string> router_flags = Join(options.model.Flags(), options.router_flags);
  int hosts_taken = 0;
  const auto next_host = [&]() {
    return options.network == nullptr ? nullptr : &options.network->host(hosts_taken++);
  };
  const TestHost* const router_host = next_host();
  const auto add = [&](const char* role, int count, const auto& own_flags, auto& workers) {
    for (int i = 0; i < count; ++i) {
      const TestHost* const host = next_host();
      std::vector<std::string> flags = Join(worker_flags, own_flags);
      if (host != nullptr) {
        flags.insert(flags.end(), {"--kv-listen", absl::StrCat(host->address(), ":0")});
      }
      workers.push_back(
          std::make_unique<ServerProcess>(role, std::move(flags), options.failpoint_folder, host));
      if (!options.registered) {
        router_flags.insert(router_flags.end(),
                            {absl::StrCat("--", role), workers.back()->address()});
      }
    }
  };
  add("decode", options.decode_workers, options.decode_flags, cluster->decode_);
  add("prefill", options.prefill_workers, options.prefill_flags, cluster->prefill_);
  cluster->router_ = std::make_unique<ServerProcess>("router", router_flags,
                                                     options.failpoint_folder, router_host);
  if (options.registered) {
    for (const auto* workers : {&cluster->decode_, &cluster->prefill_}) {
      for (const auto& worker : *workers) {
        worker->AddFlags({"--router", cluster->router_->address()});
      }
    }
  }
  // They load at the same time; the router is ready once it has seen the decode worker.
  for (const auto* workers : {&cluster->decode_, &cluster->prefill_}) {
    for (const auto& worker : *workers) {
      RETURN_IF_ERROR(worker->Launch());
    }
  }
  RETURN_IF_ERROR(cluster->router_->Launch());
  for (const auto* workers : {&cluster->decode_, &cluster->prefill_}) {
    for (const auto& worker : *workers) {
      RETURN_IF_ERROR(worker->AwaitReady());
    }
  }
  RETURN_IF_ERROR(cluster->router_->AwaitReady());
  cluster->client_ =
      std::make_unique<CompletionsClient>(cluster->router_->address(), cluster->router_->tls());
  if (!cluster->WaitForUsableWorkers(options.decode_workers + options.prefill_workers)) {
    return absl::DeadlineExceededError("the router does not find its workers");
  }
  return cluster;
}

bool Cluster::WaitUntilIdle(std::chrono::milliseconds patience) const {
  const auto all_idle = [](const auto& workers) {
    return std::all_of(workers.begin(), workers.end(),
                       [](const auto& worker) { return worker->IsIdle(); });
  };
  return WaitUntil([&] { return all_idle(decode_) && all_idle(prefill_); }, patience);
}

bool Cluster::WaitForUsableWorkers(int count, std::chrono::milliseconds patience) const {
  return WaitUntil(
      [this, count] {
        const absl::StatusOr<v1::StatusResponse> status = router_->Status();
        if (!status.ok()) {
          return false;
        }
        int usable = 0;
        for (const v1::WorkerStatus& worker : status->workers()) {
          const bool is_usable = worker.alive() && worker.problem().empty();
          if (is_usable && !IsKnown(worker)) {
            return false;
          }
          usable += is_usable ? 1 : 0;
        }
        return usable == count;
      },
      patience);
}

bool Cluster::IsKnown(const v1::WorkerStatus& status) const {
  const auto is_it = [&status](const ServerProcess& server) {
    if (server.address() != status.address()) {
      return false;
    }
    const absl::StatusOr<v1::WorkerDescription> now = server.Describe();
    return now.ok() && now->instance_id() == status.description().instance_id();
  };
  const auto any = [&](const auto& workers) {
    return std::any_of(workers.begin(), workers.end(),
                       [&](const auto& worker) { return is_it(*worker); });
  };
  return any(decode_) || any(prefill_);
}

}  // namespace baton
