#include "planner/pool_size.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "planner/field_check.h"
#include "planner/queueing.h"

namespace baton {
namespace {

absl::Status Validate(const PoolQuestion& question) {
  RETURN_IF_ERROR(CheckPositive("requests_per_second", question.requests_per_second, 1e6));
  RETURN_IF_ERROR(CheckRange("prompt_tokens", question.prompt_tokens, 1, 1e7));
  RETURN_IF_ERROR(
      CheckRange("prompt_squared_variation", question.prompt_squared_variation, 0, 1000));
  RETURN_IF_ERROR(CheckRange("output_tokens", question.output_tokens, 1, 1e7));
  RETURN_IF_ERROR(
      CheckPositive("first_token_limit_seconds", question.first_token_limit_seconds, 1e6));
  RETURN_IF_ERROR(CheckPositive("token_limit_seconds", question.token_limit_seconds, 1e6));
  RETURN_IF_ERROR(CheckRange("quantile", question.quantile, 0, 0.9999));
  RETURN_IF_ERROR(CheckPositive("most_utilisation", question.most_utilisation, 0.99));
  return absl::OkStatus();
}

// Mean context of a running stream: half of its output is there.
double MeanDepth(const PoolQuestion& question) {
  return question.prompt_tokens + question.output_tokens / 2;
}

// Streams that a worker may run at once for the limit on steps and for the pool's room. The step is
// linear in the batch.
absl::StatusOr<double> MostBatch(const CostModel& model, const PoolQuestion& question) {
  const double one = model.DecodeStepSeconds(1, MeanDepth(question));
  const double slope = model.DecodeStepSeconds(2, MeanDepth(question)) - one;
  double batch = slope > 0 ? 1 + (question.token_limit_seconds - one) / slope : 1e6;
  if (question.token_limit_seconds < one) {
    return absl::FailedPreconditionError(
        absl::StrCat("token_limit_seconds: a step of one stream takes ", one, " s"));
  }
  const auto& pool_tokens = model.rates().kv_pool_tokens;
  if (pool_tokens.has_value()) {
    batch = std::min(batch, *pool_tokens / (question.prompt_tokens + question.output_tokens));
  }
  batch = std::min(std::floor(batch * (1 + 1e-12)), model.rates().max_batch_tokens);
  if (batch < 1) {
    return absl::FailedPreconditionError(
        "kv_pool_tokens: less than the prompt_tokens and output_tokens of one request");
  }
  return batch;
}

// Streams on a worker on average, by Little's law with steps that grow with them: the running
// streams are those whose steps, in the time that prompts leave, give the tokens asked for.
// nullopt when they cannot.
std::optional<double> RunningStreams(const CostModel& model,
                                     const PoolQuestion& question,
                                     double requests_per_second,
                                     double prefill_share) {
  const double depth = MeanDepth(question);
  const double fixed = model.DecodeStepSeconds(0, depth);
  const double each = model.DecodeStepSeconds(1, depth) - fixed;
  const double tokens_per_second = requests_per_second * question.output_tokens;
  const double free_share = 1 - prefill_share - tokens_per_second * each;
  if (free_share <= 0) {
    return std::nullopt;
  }
  // With less than one stream on average, those that run have their steps to themselves.
  const double alone = tokens_per_second * (fixed + each) / (1 - prefill_share);
  return std::max(alone, tokens_per_second * fixed / free_share);
}

// The least number of workers for which `fits`; more never hurt.
template <typename Fits>
std::optional<int> LeastWorkers(Fits fits) {
  if (!fits(kMostPoolWorkers)) {
    return std::nullopt;
  }
  int low = 0;
  int high = kMostPoolWorkers;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return high;
}

absl::Status SizePrefill(const CostModel& model,
                         const TransportRate& transport,
                         const PoolQuestion& question,
                         SplitPools& pools) {
  const double prefill = model.PrefillSeconds(question.prompt_tokens);
  const auto load_of = [&](int workers) {
    return QueueLoad{workers, question.requests_per_second, prefill,
                     question.prompt_squared_variation};
  };
  const auto first_token = [&](int workers) {
    return WaitQuantileSeconds(load_of(workers), question.quantile) + prefill +
           transport.fixed_seconds;
  };
  const std::optional<int> workers = LeastWorkers([&](int count) {
    return load_of(count).utilisation() <= question.most_utilisation &&
           first_token(count) <= question.first_token_limit_seconds;
  });
  if (!workers.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("first_token_limit_seconds: prefill and transfer alone take ",
                     prefill + transport.fixed_seconds, " s"));
  }
  pools.prefill_workers = *workers;
  pools.prefill_seconds = prefill;
  pools.prefill_load = load_of(1).offered_servers();
  pools.queue_seconds = WaitQuantileSeconds(load_of(*workers), question.quantile);
  pools.first_token_seconds = first_token(*workers);
  return absl::OkStatus();
}

absl::Status SizeDecode(const CostModel& model, const PoolQuestion& question, SplitPools& pools) {
  const double depth = MeanDepth(question);
  pools.decode_load = question.requests_per_second * question.output_tokens *
                      model.DecodeStepSeconds(pools.most_batch, depth) / pools.most_batch;
  pools.decode_workers =
      std::max(1, static_cast<int>(std::ceil(pools.decode_load / question.most_utilisation)));
  const double each = question.requests_per_second / pools.decode_workers;
  // Below the utilisation that was asked for the streams stay under the largest batch.
  pools.running = std::min(RunningStreams(model, question, each, 0).value_or(pools.most_batch),
                           pools.most_batch);
  pools.step_seconds = model.DecodeStepSeconds(std::max(1.0, pools.running), depth);
  return absl::OkStatus();
}

// What a pool of workers that do both would show; nullopt when they cannot keep up.
std::optional<WholePool> MixedPool(const CostModel& model,
                                   const PoolQuestion& question,
                                   int workers) {
  const double each = question.requests_per_second / workers;
  const double prefill = model.PrefillSeconds(question.prompt_tokens);
  const std::optional<double> running = RunningStreams(model, question, each, each * prefill);
  if (!running.has_value()) {
    return std::nullopt;
  }
  WholePool pool{.workers = workers, .running = *running};
  const double step = model.DecodeStepSeconds(std::max(1.0, *running), MeanDepth(question));
  const double chunks = model.PrefillChunks(question.prompt_tokens, *running);
  const double steps_per_second = each * question.output_tokens / std::max(1.0, *running);
  const double share_with_chunk = std::min(1.0, each * chunks / steps_per_second);
  // Every step that carries a chunk takes longer by it; so many of the tokens come late.
  const double shared = model.SharedStepSeconds(*running, MeanDepth(question));
  pool.token_seconds =
      share_with_chunk > 1 - question.quantile ? std::max(step, shared + prefill / chunks) : step;
  const double service = prefill + chunks * shared;
  const QueueLoad load = {1, each, service, question.prompt_squared_variation};
  pool.first_token_seconds = WaitQuantileSeconds(load, question.quantile) + service;
  return pool;
}

std::optional<WholePool> SizeWhole(const CostModel& model,
                                   const PoolQuestion& question,
                                   double most_batch) {
  const auto fits = [&](int workers) {
    const std::optional<WholePool> pool = MixedPool(model, question, workers);
    const double each = question.requests_per_second / workers;
    const double decode_share = each * question.output_tokens *
                                model.DecodeStepSeconds(most_batch, MeanDepth(question)) /
                                most_batch;
    const double busy = each * model.PrefillSeconds(question.prompt_tokens) + decode_share;
    return pool.has_value() && busy <= question.most_utilisation && pool->running <= most_batch &&
           pool->first_token_seconds <= question.first_token_limit_seconds &&
           pool->token_seconds <= question.token_limit_seconds;
  };
  const std::optional<int> workers = LeastWorkers(fits);
  return workers.has_value() ? MixedPool(model, question, *workers) : std::nullopt;
}

}  // namespace

absl::StatusOr<PoolSizes> SizePools(const CostModel& model,
                                    const TransportRate& transport,
                                    const PoolQuestion& question) {
  RETURN_IF_ERROR(Validate(question));
  PoolSizes sizes;
  ASSIGN_OR_RETURN(sizes.split.most_batch, MostBatch(model, question));
  RETURN_IF_ERROR(SizePrefill(model, transport, question, sizes.split));
  RETURN_IF_ERROR(SizeDecode(model, question, sizes.split));
  sizes.whole = SizeWhole(model, question, sizes.split.most_batch);
  return sizes;
}

}  // namespace baton
