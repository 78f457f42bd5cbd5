// baton-router: completions over a fleet of prefill and decode workers.

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/flags.h"
#include "common/log.h"
#include "frontend/server_flags.h"
#include "model/checkpoint.h"
#include "model/model_path.h"
#include "router/router.h"

namespace {

// --colocate-below-tokens: where disaggregation is measured to pay.
constexpr char kMeasured[] = "measured";

struct RouterFlags {
  baton::ServerFlags server;
  std::vector<std::string> decode;
  std::vector<std::string> prefill;
  std::string colocate_below_tokens = "512";
  std::string policy = "prefix";
  std::int64_t queue_size = 256;
};

absl::Status CheckWorkers(const char* flag, const std::vector<std::string>& addresses) {
  std::set<std::string> seen;
  for (const std::string& address : addresses) {
    if (const absl::Status status = baton::CheckHostPort(address); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": ", std::string(status.message())));
    }
    if (!seen.insert(address).second) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": ", address, " is named twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRoute(const RouterFlags& flags) {
  std::uint32_t tokens = 0;
  if (flags.colocate_below_tokens != kMeasured &&
      !absl::SimpleAtoi(flags.colocate_below_tokens, &tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--colocate-below-tokens: \"", flags.colocate_below_tokens,
                     "\" is neither a number of tokens nor \"", kMeasured, "\""));
  }
  if (!baton::ParseRoutePolicyKind(flags.policy).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--policy: \"", flags.policy,
                     "\" is none of prefix, least-loaded, round-robin and session"));
  }
  return absl::OkStatus();
}

void AddRouterFlags(baton::Flags& flags, RouterFlags& settings) {
  baton::AddServerFlags(flags, baton::ServerKind::kRouter, settings.server);
  flags.TextList("decode", &settings.decode, "host:port of a decode worker");
  flags.TextList("prefill", &settings.prefill, "host:port of a prefill worker");
  flags.Text(
      "colocate-below-tokens", &settings.colocate_below_tokens,
      "prompts with fewer uncached tokens are served whole by the decode worker; measured: the "
      "length from which on splitting is measured to pay here");
  flags.Text("policy", &settings.policy,
             "prefix: where the first token is predicted to come soonest; session: as prefix, but "
             "requests of one session stay together; least-loaded; round-robin");
  flags.Integer("queue-size", &settings.queue_size, 0, 65'536,
                "requests that may wait for a place at a decode worker; one more is refused with "
                "RESOURCE_EXHAUSTED");
  flags.Check([&settings] { return CheckWorkers("--decode", settings.decode); });
  flags.Check([&settings] { return CheckWorkers("--prefill", settings.prefill); });
  flags.Check([&settings] { return CheckRoute(settings); });
}

absl::StatusOr<int> Serve(const RouterFlags& flags) {
  absl::StatusOr<std::string> path =
      baton::ResolveModelPath(flags.server.model, flags.server.cache);
  if (!path.ok()) {
    return path.status();
  }
  const auto checkpoint = baton::Checkpoint::Open(*path, flags.server.cache);
  if (!checkpoint.ok()) {
    return checkpoint.status();
  }
  const bool measured = flags.colocate_below_tokens == kMeasured;
  baton::RouteOptions route{.policy = *baton::ParseRoutePolicyKind(flags.policy)};
  std::uint32_t tokens = 0;
  if (!measured && absl::SimpleAtoi(flags.colocate_below_tokens, &tokens)) {
    route.colocate_below_tokens = tokens;
  }
  auto router = baton::Router::Start(
      **checkpoint,
      {.server = baton::MakeGrpcServerOptions(flags.server, "router"),
       .fleet = {.decode = flags.decode, .prefill = flags.prefill, .tls = flags.server.tls},
       .queue_size = static_cast<std::size_t>(flags.queue_size),
       .route = route,
       .measured_crossover = measured,
       .policy_name = flags.policy,
       .zone = flags.server.zone,
       .metrics_listen = flags.server.metrics_listen,
       .trace_file = flags.server.trace_file});
  if (!router.ok()) {
    return router.status();
  }
  return (*router)->Run();
}

}  // namespace

int main(int argc, char** argv) {
  RouterFlags settings;
  settings.server.cache = baton::DefaultCacheFolder(std::getenv("HOME"));
  baton::Flags flags("baton-router",
                     "Takes completion requests, tokenizes them and sends each to the decode "
                     "worker, alone or with a "
                     "prefill worker, that serves it best.");
  AddRouterFlags(flags, settings);
  if (const std::optional<int> code = flags.Parse(argc, argv)) {
    return *code;
  }
  baton::SetUpLog(baton::MakeLogOptions(settings.server, "router"));
  const absl::StatusOr<int> code = Serve(settings);
  if (!code.ok()) {
    std::fprintf(stderr, "baton-router: %s\n", std::string(code.status().message()).c_str());
    return 1;
  }
  return *code;
}
