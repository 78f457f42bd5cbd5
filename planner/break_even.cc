#include "planner/break_even.h"

#include <functional>

#include "planner/disaggregation.h"

namespace baton {
namespace {

std::optional<int> GainsFrom(int most_tokens, const std::function<double(double)>& gain) {
  int least = most_tokens + 1;
  while (least > 1 && gain(least - 1) > 0) {
    --least;
  }
  return least <= most_tokens ? std::optional<int>(least) : std::nullopt;
}

}  // namespace

double SplitGainSeconds(const SplitQuestion& question, double prompt_tokens) {
  const PromptTokens prompt{prompt_tokens};
  const FirstTokenTime whole = question.model.PredictColocated(prompt, question.decode_load);
  const FirstTokenTime split = PredictDisaggregated(
      {question.model, question.prefill_load, question.transport}, prompt, prompt);
  const double gain = whole.decoding_seconds() - split.decoding_seconds();
  return question.count_stalls ? gain + whole.stall_seconds - split.stall_seconds : gain;
}

std::optional<int> SplitBreakEvenTokens(const SplitQuestion& question, int most_tokens) {
  return GainsFrom(most_tokens, [&](double tokens) { return SplitGainSeconds(question, tokens); });
}

std::optional<double> LoadBreakEvenBytesPerSecond(const CostModel& model,
                                                  double prompt_tokens,
                                                  double fixed_seconds) {
  const double left_seconds = model.PrefillSeconds(prompt_tokens) - fixed_seconds;
  if (left_seconds <= 0) {
    return std::nullopt;
  }
  // At one byte per second, a transfer's seconds are its bytes.
  return model.TransferSeconds({"", 0, 1}, prompt_tokens) / left_seconds;
}

std::optional<int> LoadBreakEvenTokens(const CostModel& model,
                                       const TransportRate& transport,
                                       int most_tokens) {
  return GainsFrom(most_tokens, [&](double tokens) {
    return model.PrefillSeconds(tokens) - model.TransferSeconds(transport, tokens);
  });
}

std::optional<int> RegionBreakEvenTokens(const CostModel& model,
                                         double round_trip_seconds,
                                         double uncached_tokens,
                                         int most_tokens) {
  return GainsFrom(most_tokens, [&](double tokens) {
    const double cached = tokens > uncached_tokens ? tokens - uncached_tokens : 0;
    return model.PrefillSeconds(tokens) -
           (model.PrefillSeconds(PromptTokens{tokens, cached}) + round_trip_seconds);
  });
}

double HidingBytesPerSecond(const CostModel& model, double prompt_tokens) {
  return HidingBytesPerSecond(model.rates().kv_bytes_per_token,
                              prompt_tokens / model.PrefillSeconds(prompt_tokens));
}

double MeasuredGroupSpeedup(const CostModel& model,
                            const HogwildTask& task,
                            double depth_tokens,
                            int workers) {
  const double one = model.DecodeStepSeconds(1, depth_tokens);
  const double together = model.DecodeStepSeconds(workers, depth_tokens);
  const double group_seconds =
      task.serial_steps * ((1 - task.parallel) * one + task.parallel / workers * together) +
      task.overhead_steps * workers * together;
  return task.serial_steps * one / group_seconds;
}

int BestMeasuredWorkers(const CostModel& model,
                        const HogwildTask& task,
                        double depth_tokens,
                        int most) {
  int best = 1;
  for (int workers = 2; workers <= most; ++workers) {
    if (MeasuredGroupSpeedup(model, task, depth_tokens, workers) >
        MeasuredGroupSpeedup(model, task, depth_tokens, best)) {
      best = workers;
    }
  }
  return best;
}

}  // namespace baton
