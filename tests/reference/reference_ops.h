#pragma once

#include <vector>

// The operations of kernels/ops.h in double precision, written from their formulas with plain
// loops. They know nothing of any backend, of blocks or of bf16: callers pass the values that the
// backend under test was given.
namespace baton::reference {

using Row = std::vector<double>;
using Matrix = std::vector<Row>;

// x / sqrt(mean(x^2) + epsilon) * weight
Row RmsNorm(const Row& x, const Row& weight, double epsilon);

// output[t][n] = sum over k of input[t][k] * weight[n][k]
Matrix MatMul(const Matrix& input, const Matrix& weight);

// x / (1 + exp(-x)) * up
Row SiluMultiply(const Row& gate, const Row& up);

// Turns the pairs (i, i + D/2) by position * frequencies[i].
Row Rotate(const Row& x, double position, const std::vector<double>& frequencies);

// The part of one segment that a query sees. Keys are not rotated; key j belongs to index j of its
// segment.
struct VisibleSegment {
  Matrix keys;    // [tokens, D]
  Matrix values;  // [tokens, D]
  double delta = 0;
};

// softmax over all segments of scale * (R(delta) q) . (R(j) k_j), times the values.
Row Attention(const Row& query,
              const std::vector<VisibleSegment>& segments,
              const std::vector<double>& frequencies,
              double scale);

// log(softmax(logits))
Row LogSoftmax(const Row& logits);

}  // namespace baton::reference
