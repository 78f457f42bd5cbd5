#pragma once

#include <optional>

namespace baton {

// The course's model of one request on one worker, and on a prefill and a decode worker: constant
// rates, one request, no queue, no batch, no fixed cost. Pure functions; thread-safe. Times are in
// milliseconds, as the course prints them; planner/cost_model.h has the model with measured rates.

inline constexpr double kCoursePrefillTokensPerMs = 40;
inline constexpr double kCourseColocatedDecodeTokensPerMs = 0.10;
inline constexpr double kCourseDecodeTokensPerMs = 0.18;  // of a GPU that does nothing else
inline constexpr double kCourseKvBytesPerToken = 125'000;
inline constexpr double kCourseRdmaBytesPerSecond = 100e9;
inline constexpr double kCourseTcpBytesPerSecond = 10e9;

struct CourseRequest {
  double prompt_tokens = 0;
  double output_tokens = 0;
};

double PrefillMs(double prompt_tokens);
// The whole prompt's KV cache over a link, after prefill.
double KvTransferMs(double prompt_tokens, double bytes_per_second);
double MsColocated(const CourseRequest& request);
double MsDisaggregated(const CourseRequest& request,
                       double bytes_per_second,
                       double decode_tokens_per_ms = kCourseDecodeTokensPerMs);

// Prompt tokens for each output token above which colocation is quicker: what decode saves on one
// output token over what the transfer of one prompt token costs. 0 when decode is no quicker.
double ColocationBreakEvenRatio(double bytes_per_second,
                                double decode_tokens_per_ms = kCourseDecodeTokensPerMs);
// The first whole prompt length at which colocation is quicker.
double FirstColocatedPromptTokens(double output_tokens, double bytes_per_second);

// KV cache sent layer by layer while later layers still compute: what is left of the transfer when
// prefill is over. A link slower than the cache is made leaves more than the last layer.
double ExposedLayerwiseMs(double prefill_ms, double transfer_ms, int layers);
// Link above which only the last layer is left: KV bytes a token times tokens a second.
double HidingBytesPerSecond(double kv_bytes_per_token, double prefill_tokens_per_second);

// What the course's constants mean.
double KvBytesPerToken(double layers, double kv_heads, double head_size, double bytes_per_value);
double DenseFlopsPerSecond(double parameters, double tokens_per_second);
// Weights are read once a step: reads needed for a rate at batch one, and the rate that reads
// allow.
double WeightReadBytesPerSecond(double weight_bytes, double tokens_per_second);
double WeightReadBoundTokensPerSecond(double weight_bytes, double bytes_per_second);

// The course's exercise: how many GPUs of each kind serve a rate.
struct CoursePool {
  double requests_per_second = 10;
  double prompt_tokens = 8192;
  double output_tokens = 300;
  double gpu_bytes = 141e9;
  double gpu_bytes_per_second = 4.8e12;
  double weight_bytes = 70e9;
  double most_utilisation = 0.7;
};
struct CoursePoolSize {
  double kv_bytes_per_request = 0;  // at its end
  int decode_batch = 0;             // requests that fit beside the weights
  double step_ms = 0;       // weights and, half way through the output, all caches read once
  double prefill_load = 0;  // GPUs kept busy
  double decode_load = 0;
  int prefill_gpus = 0;
  int decode_gpus = 0;
  double batch_of_one_ratio = 0;  // decode GPUs for each prefill GPU if nothing were batched
};
// nullopt when the weights and one request do not fit.
std::optional<CoursePoolSize> SizeCoursePool(const CoursePool& pool);

}  // namespace baton
