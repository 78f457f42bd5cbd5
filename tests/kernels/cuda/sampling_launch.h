#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/sampling.h"
#include "tests/kernels/cuda/device_array.h"

// One launch of select_tokens with host vectors in and out.
namespace baton {

struct SamplingCase {
  cuda::SamplingRow row;
  std::vector<cuda::LogitEdit> edits;
};

struct SampledRow {
  cuda::SamplingResult result;
  std::vector<int> alternatives;
  std::vector<float> logprobs;  // of the alternatives
};

// logits: [cases, vocabulary], `stride` elements from a row to the next on the device. What no row
// asks for stays as DeviceArray fills it: token -1, log probability NaN.
inline std::vector<SampledRow> Sample(const std::vector<float>& logits,
                                      const std::vector<SamplingCase>& cases,
                                      std::size_t stride = 0) {
  const std::size_t count = cases.size();
  const std::size_t vocabulary = logits.size() / count;
  stride = std::max(stride, vocabulary);
  std::vector<float> placed((count - 1) * stride + vocabulary);
  std::vector<cuda::SamplingRow> rows;
  std::vector<cuda::LogitEdit> edits;
  int most = 0;
  for (std::size_t r = 0; r < count; ++r) {
    std::copy_n(&logits[r * vocabulary], vocabulary, &placed[r * stride]);
    rows.push_back(cases[r].row);
    rows[r].first_edit = static_cast<int>(edits.size());
    edits.insert(edits.end(), cases[r].edits.begin(), cases[r].edits.end());
    rows[r].end_edit = static_cast<int>(edits.size());
    most = std::max(most, rows[r].logprobs);
  }
  const auto columns = static_cast<std::size_t>(most);
  const DeviceArray<float> logits_array(placed);
  const DeviceArray<cuda::SamplingRow> rows_array(rows);
  const DeviceArray<cuda::LogitEdit> edits_array(edits);
  const DeviceArray<cuda::SamplingResult> results(count);
  const DeviceArray<int> tokens(count * columns);
  const DeviceArray<float> logprobs(count * columns);
  const DeviceArray<float> scratch(count * vocabulary);
  EXPECT_EQ(KernelsUnderTest().select_tokens({.logits = logits_array.data(),
                                              .logits_stride = static_cast<std::int64_t>(stride),
                                              .vocabulary = static_cast<int>(vocabulary),
                                              .rows = rows_array.data(),
                                              .edits = edits_array.data(),
                                              .row_count = static_cast<int>(count),
                                              .most_alternatives = most,
                                              .results = results.data(),
                                              .alternative_tokens = tokens.data(),
                                              .alternative_logprobs = logprobs.data(),
                                              .scratch = scratch.data()},
                                             cuda::StreamHandle{}),
            0);

  const std::vector<cuda::SamplingResult> result = results.Download();
  const std::vector<int> token = tokens.Download();
  const std::vector<float> logprob = logprobs.Download();
  std::vector<SampledRow> sampled(count);
  for (std::size_t r = 0; r < count; ++r) {
    sampled[r] = {.result = result[r],
                  .alternatives = {token.begin() + static_cast<std::ptrdiff_t>(r * columns),
                                   token.begin() + static_cast<std::ptrdiff_t>((r + 1) * columns)},
                  .logprobs = {logprob.begin() + static_cast<std::ptrdiff_t>(r * columns),
                               logprob.begin() + static_cast<std::ptrdiff_t>((r + 1) * columns)}};
  }
  return sampled;
}

inline SampledRow SampleOne(const std::vector<float>& logits, const SamplingCase& one) {
  return Sample(logits, {one})[0];
}

}  // namespace baton
