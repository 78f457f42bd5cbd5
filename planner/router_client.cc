#include "planner/router_client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>

#include "absl/strings/str_cat.h"
#include "baton/v1/worker.grpc.pb.h"
#include "common/status_macros.h"
#include "proto/grpc_runtime.h"
#include "proto/peer_channel.h"

namespace baton {
namespace {

constexpr std::chrono::seconds kPatience{5};

MeasuredRates FromProto(const v1::Rates& proto) {
  MeasuredRates rates{.source = proto.source(),
                      .block_tokens = proto.block_tokens(),
                      .kv_bytes_per_token = proto.kv_bytes_per_token(),
                      .layers = proto.layers(),
                      .max_batch_tokens = proto.max_batch_tokens()};
  for (const v1::WorkerRates::PrefillRate& rate : proto.prefill()) {
    rates.prefill.push_back(
        {.prompt_tokens = rate.prompt_tokens(), .tokens_per_second = rate.tokens_per_second()});
  }
  for (const v1::WorkerRates::DecodeStep& step : proto.decode()) {
    rates.decode.push_back({.batch = step.batch(),
                            .depth_tokens = step.depth_tokens(),
                            .step_seconds = step.step_seconds()});
  }
  for (const v1::WorkerRates::TransportRate& rate : proto.transports()) {
    rates.transports.push_back({.name = rate.name(),
                                .fixed_seconds = rate.fixed_seconds(),
                                .bytes_per_second = rate.bytes_per_second()});
  }
  return rates;
}

}  // namespace

absl::StatusOr<MeasuredRates> AskRouterForRates(const std::string& address, const TlsFiles& tls) {
  KeepGrpcRunning();
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                   MakeChannelCredentials(tls));
  const auto stub =
      v1::Admin::NewStub(grpc::CreateCustomChannel(address, credentials, PeerChannelArguments()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  v1::StatusResponse response;
  if (const grpc::Status status = stub->Status(&context, v1::StatusRequest(), &response);
      !status.ok()) {
    return absl::UnavailableError(
        absl::StrCat("asking the router at ", address, ": ", status.error_message()));
  }
  if (response.role() != v1::ROLE_ROUTER) {
    return absl::FailedPreconditionError(
        absl::StrCat("at ", address, " there is no router: ask one, which knows all workers"));
  }
  if (!response.has_rates()) {
    const std::string& why = response.crossover().why_unknown();
    return absl::FailedPreconditionError(
        absl::StrCat("the router at ", address, " has no rates yet",
                     why.empty() ? std::string() : absl::StrCat(": ", why)));
  }
  MeasuredRates rates = FromProto(response.rates());
  if (const absl::Status status = rates.Validate(); !status.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the rates of the router at ", address, ": ", std::string(status.message())));
  }
  return rates;
}

}  // namespace baton
