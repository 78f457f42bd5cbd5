#include "router/worker_costs.h"

#include "common/check.h"

namespace baton {

std::shared_ptr<const CostModel> NominalCosts() {
  static const auto* const costs = [] {
    MeasuredRates rates;
    rates.source = "nominal";
    rates.kv_bytes_per_token = 1 << 15;
    rates.layers = 32;
    rates.prefill = {{.prompt_tokens = 64, .tokens_per_second = 2000},
                     {.prompt_tokens = 512, .tokens_per_second = 3000},
                     {.prompt_tokens = 4096, .tokens_per_second = 2000}};
    rates.decode = {{.batch = 1, .depth_tokens = 512, .step_seconds = 0.02},
                    {.batch = 8, .depth_tokens = 512, .step_seconds = 0.03}};
    rates.transports = {{.name = "nominal", .fixed_seconds = 0.003, .bytes_per_second = 2e9}};
    absl::StatusOr<CostModel> model = CostModel::Fit(std::move(rates));
    BATON_CHECK(model.ok());
    return new std::shared_ptr<const CostModel>(
        std::make_shared<const CostModel>(*std::move(model)));
  }();
  return *costs;
}

}  // namespace baton
