#include "bench/bench_load.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/completions_client.h"
#include "common/status_macros.h"

namespace baton {
namespace {

constexpr auto kAskPatience = std::chrono::seconds(10);
constexpr Duration kRequestTimeout = std::chrono::minutes(2);

// Other tokens in every prompt, the same wherever they were the same.
void GiveOtherTokens(Workload& workload) {
  static std::atomic<std::uint64_t> next{1};
  const std::uint64_t salt = next.fetch_add(1) << 48;
  for (LoadRequest& request : workload.requests) {
    request.seed ^= salt;
    for (std::uint64_t& id : request.shape.hash_ids) {
      id ^= salt;
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<BenchLoad>> BenchLoad::Create(const std::string& router) {
  ASSIGN_OR_RETURN(const std::unique_ptr<CompletionsClient> client,
                   CompletionsClient::Create(router, {}));
  ASSIGN_OR_RETURN(const v1::ListModelsResponse models, client->ListModels(kAskPatience));
  if (models.models().empty()) {
    return absl::FailedPreconditionError(router + " serves no model");
  }
  std::unique_ptr<BenchLoad> load(new BenchLoad());
  load->model_ = models.models(0).name();
  ASSIGN_OR_RETURN(
      load->generator_,
      LoadGenerator::Create({.server = router,
                             .vocabulary = OrdinaryTokens(models.models(0).vocabulary_size()),
                             .request_timeout = kRequestTimeout}));
  return load;
}

absl::Status BenchLoad::WarmUp(bool splits) {
  Workload workload;
  for (const v1::Path path : {v1::PATH_COLOCATED, v1::PATH_DISAGGREGATED}) {
    for (int i = 0; i < 4 && (splits || path == v1::PATH_COLOCATED); ++i) {
      workload.requests.push_back(
          {.shape = {.prompt_tokens = i < 2 ? 2048 : 64, .output_tokens = 16},
           .seed = workload.requests.size(),
           .path = path});
    }
  }
  ASSIGN_OR_RETURN(const LoadRun run, Run(std::move(workload)));
  for (const RequestRecord& record : run.records) {
    if (!record.ok()) {
      return absl::UnavailableError(
          absl::StrCat("warm-up: ", std::string(record.status.message())));
    }
    if (!record.transport.empty()) {
      transport_ = record.transport;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<LoadRun> BenchLoad::Run(Workload workload) {
  GiveOtherTokens(workload);
  return generator_->Run(workload);
}

}  // namespace baton
