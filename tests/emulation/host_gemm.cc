#include "tests/emulation/host_gemm.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/bfloat16.h"
#include "kernels/half.h"
#include "tests/emulation/launch_queue.h"

namespace baton::emulated {
namespace {

// Sums run in so many lanes, which are added at the end: in the same order for every shape.
constexpr int kLanes = 16;

float ToFloat(std::uint16_t bits, cuda::Element element) {
  return element == cuda::Element::kBFloat16 ? baton::ToFloat(BFloat16{bits})
                                             : baton::ToFloat(Half{bits});
}

// Rows as floats, each filled up with zeros to a multiple of kLanes.
std::vector<float> Widen(const void* data,
                         std::int64_t stride,
                         cuda::Element element,
                         int rows,
                         int columns,
                         std::size_t width) {
  std::vector<float> wide(static_cast<std::size_t>(rows) * width, 0.0f);
  const auto* const from = static_cast<const std::uint16_t*>(data);
  for (int row = 0; row < rows; ++row) {
    float* const to = wide.data() + static_cast<std::size_t>(row) * width;
    for (int k = 0; k < columns; ++k) {
      to[k] = ToFloat(from[row * stride + k], element);
    }
  }
  return wide;
}

float Dot(const float* a, const float* b, std::size_t width) {
  std::array<float, kLanes> sums{};
  for (std::size_t k = 0; k < width; k += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += a[k + lane] * b[k + lane];
    }
  }
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) {
      sums[lane] += sums[lane + half];
    }
  }
  return sums[0];
}

void Multiply(const cuda::GemmParams& p) {
  const auto lanes = static_cast<std::size_t>(kLanes);
  const std::size_t width = (static_cast<std::size_t>(p.inner) + lanes - 1) / lanes * lanes;
  const std::vector<float> input =
      Widen(p.input, p.input_stride, p.element, p.rows, p.inner, width);
  for (int n = 0; n < p.columns; ++n) {
    const auto* const row = static_cast<const std::uint16_t*>(p.weight) + std::int64_t{n} * p.inner;
    const std::vector<float> weight = Widen(row, p.inner, p.element, 1, p.inner, width);
    for (int t = 0; t < p.rows; ++t) {
      const float sum =
          Dot(input.data() + static_cast<std::size_t>(t) * width, weight.data(), width);
      float& out = p.output[t * p.output_stride + n];
      out = p.accumulate ? out + sum : sum;
    }
  }
}

}  // namespace

absl::Status HostGemm::Prepare(const cuda::GemmParams& params) {
  if (params.rows < 0 || params.columns <= 0 || params.inner <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a product of ", params.rows, " x ", params.columns, " x ", params.inner));
  }
  return absl::OkStatus();
}

absl::Status HostGemm::Run(const cuda::GemmParams& params, cuda::StreamHandle stream) {
  if (absl::Status status = Prepare(params); !status.ok()) {
    return status;
  }
  if (params.rows > 0) {
    Enqueue(stream, [params] { Multiply(params); });
  }
  return absl::OkStatus();
}

}  // namespace baton::emulated
