#include "planner/disaggregation.h"

#include <algorithm>
#include <cmath>

namespace baton {

double PrefillMs(double prompt_tokens) {
  return prompt_tokens / kCoursePrefillTokensPerMs;
}

double KvTransferMs(double prompt_tokens, double bytes_per_second) {
  return prompt_tokens * kCourseKvBytesPerToken / bytes_per_second * 1000;
}

double MsColocated(const CourseRequest& request) {
  return PrefillMs(request.prompt_tokens) +
         request.output_tokens / kCourseColocatedDecodeTokensPerMs;
}

double MsDisaggregated(const CourseRequest& request,
                       double bytes_per_second,
                       double decode_tokens_per_ms) {
  return PrefillMs(request.prompt_tokens) + KvTransferMs(request.prompt_tokens, bytes_per_second) +
         request.output_tokens / decode_tokens_per_ms;
}

double ColocationBreakEvenRatio(double bytes_per_second, double decode_tokens_per_ms) {
  const double saved_ms = 1 / kCourseColocatedDecodeTokensPerMs - 1 / decode_tokens_per_ms;
  return std::max(0.0, saved_ms / KvTransferMs(1, bytes_per_second));
}

double FirstColocatedPromptTokens(double output_tokens, double bytes_per_second) {
  return std::floor(ColocationBreakEvenRatio(bytes_per_second) * output_tokens) + 1;
}

double ExposedLayerwiseMs(double prefill_ms, double transfer_ms, int layers) {
  const double layer_transfer_ms = transfer_ms / layers;
  const double layer_compute_ms = prefill_ms / layers;
  return std::max(layer_transfer_ms, layer_compute_ms + transfer_ms - prefill_ms);
}

double HidingBytesPerSecond(double kv_bytes_per_token, double prefill_tokens_per_second) {
  return kv_bytes_per_token * prefill_tokens_per_second;
}

double KvBytesPerToken(double layers, double kv_heads, double head_size, double bytes_per_value) {
  return layers * kv_heads * head_size * 2 * bytes_per_value;
}

double DenseFlopsPerSecond(double parameters, double tokens_per_second) {
  return 2 * parameters * tokens_per_second;
}

double WeightReadBytesPerSecond(double weight_bytes, double tokens_per_second) {
  return weight_bytes * tokens_per_second;
}

double WeightReadBoundTokensPerSecond(double weight_bytes, double bytes_per_second) {
  return bytes_per_second / weight_bytes;
}

std::optional<CoursePoolSize> SizeCoursePool(const CoursePool& pool) {
  CoursePoolSize size;
  size.kv_bytes_per_request = (pool.prompt_tokens + pool.output_tokens) * kCourseKvBytesPerToken;
  const double batch = std::floor((pool.gpu_bytes - pool.weight_bytes) / size.kv_bytes_per_request);
  if (!(batch >= 1 && batch <= 1e9)) {
    return std::nullopt;
  }
  size.decode_batch = static_cast<int>(batch);
  const double middle_bytes =
      (pool.prompt_tokens + pool.output_tokens / 2) * kCourseKvBytesPerToken;
  size.step_ms = (pool.weight_bytes + batch * middle_bytes) / pool.gpu_bytes_per_second * 1000;
  size.prefill_load = pool.requests_per_second * PrefillMs(pool.prompt_tokens) / 1000;
  size.decode_load = pool.requests_per_second * pool.output_tokens * size.step_ms / 1000 / batch;
  size.prefill_gpus = static_cast<int>(std::ceil(size.prefill_load / pool.most_utilisation));
  size.decode_gpus = static_cast<int>(std::ceil(size.decode_load / pool.most_utilisation));
  size.batch_of_one_ratio =
      pool.output_tokens / kCourseDecodeTokensPerMs / PrefillMs(pool.prompt_tokens);
  return size;
}

}  // namespace baton
