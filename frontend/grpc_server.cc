#include "frontend/grpc_server.h"

#include <grpcpp/ext/channelz_service_plugin.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <cstdio>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "frontend/shutdown_signals.h"
#include "proto/grpc_runtime.h"

namespace baton {
namespace {

constexpr int kMaxMessageBytes = 16 << 20;
constexpr std::chrono::milliseconds kTick{20};
// For what is cancelled to end by itself, and for last bytes to leave, before the server is torn
// down.
constexpr std::chrono::milliseconds kCancelTime{2'000};
constexpr std::chrono::milliseconds kFlushTime{1'000};

void Configure(grpc::ServerBuilder& builder, const GrpcServerOptions& options) {
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  // With port reuse on, a second process would share a taken port instead of failing.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                             static_cast<int>(options.ping_after.count()));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             static_cast<int>(options.ping_answer.count()));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // however long a call is
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);  // a client may ping as it likes
}

std::string HostOf(const std::string& host_port) {
  return host_port.substr(0, host_port.rfind(':'));
}

}  // namespace

GrpcServer::GrpcServer(GrpcServerOptions options, std::vector<std::string> service_names)
    : options_(std::move(options)), service_names_(std::move(service_names)) {}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    GrpcServerOptions options, const std::vector<ServedService>& services) {
  KeepGrpcRunning();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  if (options.channelz) {
    grpc::channelz::experimental::InitChannelzService();
  }
  grpc::ServerBuilder builder;
  Configure(builder, options);
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ServerCredentials> credentials,
                   MakeServerCredentials(options.tls));
  int port = 0;
  builder.AddListeningPort(options.listen, credentials, &port);
  std::vector<std::string> names = {""};
  for (const ServedService& served : services) {
    builder.RegisterService(served.service);
    names.push_back(served.name);
  }
  auto server = std::unique_ptr<GrpcServer>(new GrpcServer(std::move(options), std::move(names)));
  ASSIGN_OR_RETURN(server->signals_, ShutdownSignals::Install());
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || port == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", server->options_.listen,
                     ": the port is taken, the address is not this machine's, or the TLS files do "
                     "not fit together"));
  }
  {
    // gRPC's health service begins as SERVING; nobody has been told the port by now.
    absl::MutexLock lock(&server->mutex_);
    server->SetHealth(false);
  }
  const std::string& host = server->options_.advertise_host;
  server->address_ = absl::StrCat(host.empty() ? HostOf(server->options_.listen) : host, ":", port);
  LogEvent(LogLevel::kInfo, "server.listening",
           {{"listen", server->options_.listen},
            {"address", server->address_},
            {"tls", !server->options_.tls.empty()}});
  return server;
}

GrpcServer::~GrpcServer() {
  if (server_ != nullptr) {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }
}

void GrpcServer::AddDoor(std::string key, std::string address) {
  absl::MutexLock lock(&mutex_);
  doors_.emplace_back(std::move(key), std::move(address));
}

void GrpcServer::SetHealth(bool serving) {
  for (const std::string& name : service_names_) {
    server_->GetHealthCheckService()->SetServingStatus(name, serving);
  }
}

void GrpcServer::SetReady(bool ready) {
  absl::MutexLock lock(&mutex_);
  if (ending_) {
    return;
  }
  SetHealth(ready);
  LogEvent(LogLevel::kInfo, ready ? "server.ready" : "server.not_ready");
  if (!ready || announced_) {
    return;
  }
  announced_ = true;
  std::string line = absl::StrCat("ready ", options_.role, " grpc=", address_);
  for (const auto& [key, address] : doors_) {
    absl::StrAppend(&line, " ", key, "=", address);
  }
  line += '\n';
  if (std::fwrite(line.data(), 1, line.size(), stdout) != line.size() || std::fflush(stdout) != 0) {
    LogEvent(LogLevel::kWarn, "server.ready_line_lost", {{"why", "standard output is closed"}});
  }
}

int GrpcServer::Run(DrainTarget& work) {
  while (!signals_->Wait(std::chrono::milliseconds(-1))) {
  }
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
    SetHealth(false);
  }
  work.StopIntake();
  LogEvent(LogLevel::kInfo, "server.draining",
           {{"in_flight", work.InFlight()}, {"grace_ms", options_.drain_grace.count()}});
  const TimePoint grace_end = Clock::System().Now() + options_.drain_grace;
  bool cut_short = false;
  while (work.InFlight() > 0 && !cut_short) {
    cut_short = signals_->Wait(kTick) || Clock::System().Now() >= grace_end;
  }
  if (cut_short) {
    LogEvent(LogLevel::kWarn, "server.drain_cut_short", {{"in_flight", work.InFlight()}});
    work.CancelRest(absl::UnavailableError("server is shutting down"));
    const TimePoint cancel_end = Clock::System().Now() + kCancelTime;
    while (work.InFlight() > 0 && Clock::System().Now() < cancel_end) {
      signals_->Wait(kTick);
    }
  }
  if (end_streams_) {
    end_streams_();
  }
  server_->Shutdown(std::chrono::system_clock::now() + kFlushTime);
  LogEvent(LogLevel::kInfo, "server.stopped", {{"drained", !cut_short}});
  return cut_short ? kDrainCutShort : kDrained;
}

}  // namespace baton
