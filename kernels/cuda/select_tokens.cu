#include <cmath>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launchers.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/sampling.h"
#include "kernels/cuda/token_ranking.cuh"
#include "kernels/philox.h"

// Chooses the next token of every row: one block a row, steps as in kernels/select_tokens.h. Greedy
// rows are read once, others two to ten times, all but the first time from the L2 cache; bound by
// what one multiprocessor can read, so a batch of rows takes as long as one.
//
// The draw walks the tokens as the CPU's TokenSelector does: by id where top_p is 1, likely first
// where it is not. With equal logits, parameters, seed and position both give the same token,
// unless the draw falls on the border of two tokens within the rounding of the CPU's sums: weights
// are the same floats (but for processors without fused multiply-add), summed here in units of
// 2^-44, there in double.
namespace baton::BATON_CUDA_NAMESPACE {
namespace {

using cuda::LogitEdit;
using cuda::SamplingError;
using cuda::SamplingParams;
using cuda::SamplingResult;
using cuda::SamplingRow;

constexpr float kLog2E = 1.44269504f;

struct Best {
  int token;
  float logit;
  SamplingError error;
};

// The largest logit and, among equals, the lowest id.
__device__ Best FindBest(const LogitRow& row, RankingMemory& memory) {
  Place best = kNowhere;
  ForEachLogit(row, [&](int id, float logit) {
    // Smaller than all places where it is NaN or +infinity, so that one of them is enough.
    const Place place = logit < INFINITY ? PlaceOf(logit, id) : 0;
    best = place < best ? place : best;
  });
  best = ReduceBlock<kRankingThreads>(best, memory.sums,
                                      [](Place a, Place b) { return a < b ? a : b; });
  if (best == 0) {
    return {.token = 0, .logit = 0, .error = SamplingError::kNotFinite};
  }
  const float logit = row.logits[TokenAt(best)];
  return {.token = TokenAt(best),
          .logit = logit,
          .error = logit == -INFINITY ? SamplingError::kNoPossibleToken : SamplingError::kNone};
}

// Rounded step by step, as on the CPU: nothing is fused.
__device__ float Edited(float logit, const LogitEdit& edit, const SamplingRow& row) {
  if (edit.in_history != 0) {
    logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    if (edit.output_count != 0) {
      const float frequency =
          __fmul_rn(row.frequency_penalty, static_cast<float>(edit.output_count));
      logit = __fadd_rn(logit, -__fadd_rn(frequency, row.presence_penalty));
    }
  }
  logit = __fadd_rn(logit, edit.bias);
  return edit.banned != 0 ? -INFINITY : logit;
}

// A copy of the row with its edits, for the whole block to read.
__device__ LogitRow Edit(const SamplingParams& params, const SamplingRow& row, LogitRow logits) {
  float* copy = params.scratch + static_cast<std::int64_t>(blockIdx.x) * params.vocabulary;
  for (int i = static_cast<int>(threadIdx.x); i < logits.count; i += kRankingThreads) {
    copy[i] = logits.logits[i];
  }
  __syncthreads();
  for (int e = row.first_edit + static_cast<int>(threadIdx.x); e < row.end_edit;
       e += kRankingThreads) {
    const LogitEdit edit = params.edits[e];
    copy[edit.token] = Edited(copy[edit.token], edit, row);
  }
  __syncthreads();
  return {.logits = copy,
          .count = logits.count,
          .aligned = reinterpret_cast<std::uintptr_t>(copy) % 16 == 0};
}

// The units with which a walk over `total` passes the draw, at least 1.
__device__ Units DrawnUnits(const SamplingRow& row, Units total) {
  const double target = UniformDraw(row.seed, row.position) * static_cast<double>(total);
  const Units goal = static_cast<Units>(target) + 1;
  return goal < total ? goal : total;  // the rounding of the product may reach the end
}

// Probability of the tokens in `span` that are not after `last`, as seen by members of a group.
__device__ Units SumUnits(
    const LogitRow& logits, const Softmax& softmax, Place last, Span span, int rank, int size) {
  Units sum = 0;
  ForEachLogit(logits, span, rank, size, [&](int id, float logit) {
    sum += PlaceOf(logit, id) <= last ? softmax.UnitsOf(logit) : 0;
  });
  return sum;
}

// Walks the tokens by id, of those that are not after `last`: every warp sums a part of the row,
// then all turn to the part in which the draw fell, until a thread has one token.
__device__ int DrawById(const LogitRow& logits,
                        const Softmax& softmax,
                        Place last,
                        const SamplingRow& row,
                        RankingMemory& memory) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  Span span{0, logits.count};
  Units goal = 0;
  Units before = 0;  // of what is in front of span
  do {
    const int part = (span.end - span.begin + 4 * kRankingWarps - 1) / (4 * kRankingWarps) * 4;
    const int begin = min(span.begin + warp * part, span.end);
    Units sum = SumUnits(logits, softmax, last, {begin, min(begin + part, span.end)}, lane, kWarp);
    sum = ReduceWarp(sum, [](Units a, Units b) { return a + b; });
    if (lane == 0) {
      memory.sums[warp] = sum;
    }
    __syncthreads();
    if (goal == 0) {
      Units total = 0;
      for (const Units of_warp : memory.sums) {
        total += of_warp;
      }
      goal = DrawnUnits(row, total);
    }
    int chosen = 0;
    while (chosen < kRankingWarps - 1 && before + memory.sums[chosen] < goal) {
      before += memory.sums[chosen++];
    }
    span.end = min(span.begin + (chosen + 1) * part, span.end);
    span.begin += chosen * part;
    __syncthreads();  // all have read the sums
  } while (span.end - span.begin > kRankingThreads);

  const int id = span.begin + static_cast<int>(threadIdx.x);
  const bool has_one = id < span.end;
  const float logit = has_one ? logits.logits[id] : 0.0f;
  const Units own = has_one && PlaceOf(logit, id) <= last ? softmax.UnitsOf(logit) : 0;
  const Units passed = before + InclusiveSum<kRankingThreads>(own, memory.sums);
  if (passed - own < goal && goal <= passed) {  // true of one thread
    memory.cut.place = PlaceOf(logit, id);
  }
  __syncthreads();
  return TokenAt(memory.cut.place);
}

__device__ int Draw(const LogitRow& logits,
                    float maximum,
                    const SamplingRow& row,
                    RankingMemory& memory) {
  // Bounded, so that no temperature, however small, makes infinity times zero.
  const float scale = fminf(1.0f / row.temperature, 1e30f);
  const Softmax softmax{
      .maximum = maximum, .factor = scale * kLog2E, .least = row.min_p, .everyone = false};
  if (row.top_p >= 1 && row.top_k == 0) {
    return DrawById(logits, softmax, kNowhere, row, memory);
  }
  TokenRanking ranking(logits, softmax, memory);
  ranking.Build();
  Cut kept{.place = kNowhere, .units = ranking.Total()};
  if (row.top_k > 0 && static_cast<Units>(row.top_k) < ranking.Count()) {
    kept = ranking.Find<true>(static_cast<Units>(row.top_k));
  }
  if (row.top_p >= 1) {
    return DrawById(logits, softmax, kept.place, row, memory);
  }
  const double enough = static_cast<double>(row.top_p) * static_cast<double>(kept.units);
  const Units goal = static_cast<Units>(ceil(enough));
  kept = ranking.Find<false>(goal < 1 ? 1 : goal < kept.units ? goal : kept.units);
  return TokenAt(ranking.Find<false>(DrawnUnits(row, kept.units)).place);
}

// Log probabilities of the model's own distribution: of the token, and of the most likely ones,
// kList at a time.
__device__ float ReportLogprobs(const SamplingParams& params,
                                const LogitRow& logits,
                                float maximum,
                                const SamplingRow& row,
                                int token,
                                RankingMemory& memory) {
  const Softmax softmax{.maximum = maximum, .factor = kLog2E};
  TokenRanking ranking(logits, softmax, memory);
  ranking.Build();
  const double log_total =
      static_cast<double>(maximum) + log(static_cast<double>(ranking.Total()) * 0x1p-44);
  const auto logprob = [&](int of) {
    return static_cast<float>(static_cast<double>(logits.logits[of]) - log_total);
  };
  const int wanted = min(min(row.logprobs, params.most_alternatives), logits.count);
  const std::int64_t out = static_cast<std::int64_t>(blockIdx.x) * params.most_alternatives;
  Place first = 0;
  for (int done = 0; done < wanted; done += kList) {
    const int size = min(kList, wanted - done);
    const Cut cut = ranking.Find<true>(static_cast<Units>(done + size));
    ranking.Collect(first, cut.place);
    for (int t = static_cast<int>(threadIdx.x); t < size; t += kRankingThreads) {
      const Place own = memory.list[t];
      int rank = done;
      for (int i = 0; i < size; ++i) {
        rank += memory.list[i] < own ? 1 : 0;
      }
      params.alternative_tokens[out + rank] = TokenAt(own);
      params.alternative_logprobs[out + rank] = logprob(TokenAt(own));
    }
    first = cut.place + 1;
  }
  return logprob(token);
}

__device__ SamplingResult Select(const SamplingParams& params,
                                 const SamplingRow& row,
                                 const LogitRow& logits,
                                 RankingMemory& memory) {
  const Best raw = FindBest(logits, memory);
  if (raw.error != SamplingError::kNone) {
    return {.error = raw.error};
  }
  int token = row.forced;
  if (token < 0) {
    LogitRow adjusted = logits;
    Best best = raw;
    if (row.first_edit < row.end_edit) {
      adjusted = Edit(params, row, logits);
      best = FindBest(adjusted, memory);
      if (best.error != SamplingError::kNone) {
        return {.error = best.error};
      }
    }
    token = row.temperature == 0 ? best.token : Draw(adjusted, best.logit, row, memory);
  }
  const float logprob =
      row.logprobs < 0 ? 0.0f : ReportLogprobs(params, logits, raw.logit, row, token, memory);
  return {.token = token, .logprob = logprob};
}

__global__ void __launch_bounds__(kRankingThreads, 1) SelectTokensKernel(SamplingParams params) {
  alignas(16) __shared__ RankingMemory memory;
  const float* logits = params.logits + blockIdx.x * params.logits_stride;
  const LogitRow whole{.logits = logits,
                       .count = params.vocabulary,
                       .aligned = reinterpret_cast<std::uintptr_t>(logits) % 16 == 0};
  const SamplingResult result = Select(params, params.rows[blockIdx.x], whole, memory);
  if (threadIdx.x == 0) {
    params.results[blockIdx.x] = result;
  }
}

}  // namespace

cuda::LaunchCode LaunchSelectTokens(const SamplingParams& params, cuda::StreamHandle stream) {
  if (params.row_count == 0) {
    return 0;
  }
  return Launch(SelectTokensKernel, static_cast<unsigned>(params.row_count), kRankingThreads, 0,
                stream, params);
}

}  // namespace baton::BATON_CUDA_NAMESPACE
