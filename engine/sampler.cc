#include "engine/sampler.h"

namespace baton {
namespace {

TokenSelection SelectionFor(const SampleRow& row) {
  const SequenceRequest& request = *row.request;
  const SamplingParameters& sampling = request.sampling;
  const auto prompt_tokens = static_cast<int>(request.prompt.size());
  const int output_tokens = static_cast<int>(row.history.size()) - prompt_tokens;
  const bool may_stop = output_tokens >= request.min_tokens;
  return {.temperature = sampling.temperature,
          .top_p = sampling.top_p,
          .top_k = sampling.top_k,
          .min_p = sampling.min_p,
          .repetition_penalty = sampling.repetition_penalty,
          .frequency_penalty = sampling.frequency_penalty,
          .presence_penalty = sampling.presence_penalty,
          .logit_bias = sampling.logit_bias,
          .banned =
              may_stop ? std::span<const TokenId>() : std::span<const TokenId>(request.stop_tokens),
          .history = row.history,
          .prompt_tokens = prompt_tokens,
          .seed = sampling.seed,
          .position = row.history.size(),
          .logprobs = request.logprobs,
          .forced = row.forced};
}

}  // namespace

std::vector<Sample> SampleRows(Backend& backend,
                               TensorView<const float> logits,
                               std::span<const SampleRow> rows) {
  std::vector<TokenSelection> selections;
  selections.reserve(rows.size());
  for (const SampleRow& row : rows) {
    selections.push_back(SelectionFor(row));
  }
  std::vector<SelectedToken> selected(rows.size());
  const absl::Status together =
      backend.SelectTokens({.logits = logits, .rows = selections, .selected = selected});
  std::vector<Sample> samples(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    // One bad row must not fail the others: after a failure each is asked for by itself.
    if (!together.ok()) {
      samples[i].status = backend.SelectTokens({.logits = logits.Rows(static_cast<int>(i), 1),
                                                .rows = std::span(selections).subspan(i, 1),
                                                .selected = std::span(selected).subspan(i, 1)});
    }
    samples[i].token = std::move(selected[i]);
  }
  return samples;
}

}  // namespace baton
