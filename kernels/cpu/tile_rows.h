#pragma once

#include <cmath>
#include <cstdint>

// Operations on one row: normalisation, activation, rotation, rounding. Memory-bound and small
// beside the matrices. Sums run lane by lane from the start of the row and are joined once. Flatten
// makes the number of lanes a constant for all but the end of a row. Unnamed namespace: see
// vector_plain.h.
namespace baton {
namespace {

constexpr float kLog2E = 1.44269504f;

// Calls body(i, n) for each run of n <= V::kLanes elements at i.
template <typename V, typename Body>
void ForLanes(int count, const Body& body) {
  int i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) {
    body(i, V::kLanes);
  }
  if (i < count) {
    body(i, count - i);
  }
}

template <typename V>
[[gnu::flatten]] void RmsNormRow(
    const float* input, const float* weight, float epsilon, int width, std::uint16_t* output) {
  typename V::Float sum = V::Zero();
  ForLanes<V>(width, [&](int i, int n) {
    const typename V::Float x = V::LoadFirst(input + i, n);
    sum = V::MultiplyAdd(x, x, sum);
  });
  const float mean = V::ReduceAdd(sum) / static_cast<float>(width);
  const typename V::Float inverse = V::Set(1.0f / __builtin_sqrtf(mean + epsilon));
  ForLanes<V>(width, [&](int i, int n) {
    const typename V::Float x = V::Multiply(V::LoadFirst(input + i, n), inverse);
    V::StoreBFloat16First(output + i, V::Multiply(x, V::LoadFirst(weight + i, n)), n);
  });
}

template <typename V>
[[gnu::always_inline]] inline typename V::Float Silu(typename V::Float x) {
  const typename V::Float e = V::Exp2(V::Multiply(x, V::Set(-kLog2E)));
  return V::Divide(x, V::Add(V::Set(1.0f), e));
}

template <typename V>
[[gnu::flatten]] void SiluMultiplyRow(const float* gate,
                                      const float* up,
                                      int width,
                                      std::uint16_t* output) {
  ForLanes<V>(width, [&](int i, int n) {
    const typename V::Float silu = Silu<V>(V::LoadFirst(gate + i, n));
    V::StoreBFloat16First(output + i, V::Multiply(silu, V::LoadFirst(up + i, n)), n);
  });
}

// Words of the n pairs (i, i + D/2) from i on of `row`, turned and then scaled.
template <typename V>
[[gnu::always_inline]] inline typename V::Words RotatePairs(const float* row,
                                                            const float* cosines,
                                                            const float* sines,
                                                            typename V::Float sine_sign,
                                                            typename V::Float scale,
                                                            int half,
                                                            int i,
                                                            int n) {
  const typename V::Float a = V::LoadFirst(row + i, n);
  const typename V::Float b = V::LoadFirst(row + half + i, n);
  const typename V::Float c = V::LoadFirst(cosines + i, n);
  const typename V::Float s = V::Multiply(sine_sign, V::LoadFirst(sines + i, n));
  const typename V::Float turned_a = V::Subtract(V::Multiply(a, c), V::Multiply(b, s));
  const typename V::Float turned_b = V::Add(V::Multiply(a, s), V::Multiply(b, c));
  return V::PackPairs(V::Multiply(turned_a, scale), V::Multiply(turned_b, scale));
}

template <typename V>
[[gnu::flatten]] void RotateScaledRow(const float* row,
                                      const float* cosines,
                                      const float* sines,
                                      float sine_sign,
                                      float scale,
                                      int head_dim,
                                      std::uint32_t* words) {
  const typename V::Float sign = V::Set(sine_sign);
  const typename V::Float factor = V::Set(scale);
  ForLanes<V>(head_dim / 2, [&](int i, int n) {
    V::StoreWordsFirst(words + i,
                       RotatePairs<V>(row, cosines, sines, sign, factor, head_dim / 2, i, n), n);
  });
}

template <typename V>
[[gnu::flatten]] void SoftmaxWeights(
    const float* logits, int count, float maximum, float scale, float* weights) {
  const typename V::Float shift = V::Set(maximum);
  const typename V::Float factor = V::Set(scale * kLog2E);
  ForLanes<V>(count, [&](int i, int n) {
    const typename V::Float x = V::Subtract(V::LoadFirst(logits + i, n), shift);
    V::StoreFirst(weights + i, V::Exp2(V::Multiply(x, factor)), n);
  });
}

}  // namespace
}  // namespace baton
