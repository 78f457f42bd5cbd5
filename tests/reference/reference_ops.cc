#include "tests/reference/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace baton::reference {
namespace {

double Dot(const Row& a, const Row& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

}  // namespace

Row RmsNorm(const Row& x, const Row& weight, double epsilon) {
  const double inverse = 1.0 / std::sqrt(Dot(x, x) / static_cast<double>(x.size()) + epsilon);
  Row out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    out[i] = x[i] * inverse * weight[i];
  }
  return out;
}

Matrix MatMul(const Matrix& input, const Matrix& weight) {
  Matrix out;
  for (const Row& row : input) {
    Row products;
    for (const Row& weight_row : weight) {
      products.push_back(Dot(row, weight_row));
    }
    out.push_back(products);
  }
  return out;
}

Row SiluMultiply(const Row& gate, const Row& up) {
  Row out(gate.size());
  for (std::size_t i = 0; i < gate.size(); ++i) {
    out[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
  }
  return out;
}

Row Rotate(const Row& x, double position, const std::vector<double>& frequencies) {
  const std::size_t half = x.size() / 2;
  Row out(x.size());
  for (std::size_t i = 0; i < half; ++i) {
    const double angle = position * frequencies[i];
    out[i] = x[i] * std::cos(angle) - x[i + half] * std::sin(angle);
    out[i + half] = x[i] * std::sin(angle) + x[i + half] * std::cos(angle);
  }
  return out;
}

Row Attention(const Row& query,
              const std::vector<VisibleSegment>& segments,
              const std::vector<double>& frequencies,
              double scale) {
  Row scores;
  std::vector<const Row*> values;
  for (const VisibleSegment& segment : segments) {
    const Row turned = Rotate(query, segment.delta, frequencies);
    for (std::size_t j = 0; j < segment.keys.size(); ++j) {
      scores.push_back(scale *
                       Dot(turned, Rotate(segment.keys[j], static_cast<double>(j), frequencies)));
      values.push_back(&segment.values[j]);
    }
  }
  const double maximum = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  Row out(query.size(), 0.0);
  for (std::size_t j = 0; j < scores.size(); ++j) {
    const double weight = std::exp(scores[j] - maximum);
    total += weight;
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] += weight * (*values[j])[i];
    }
  }
  for (double& x : out) {
    x /= total;
  }
  return out;
}

Row LogSoftmax(const Row& logits) {
  const double maximum = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const double x : logits) {
    total += std::exp(x - maximum);
  }
  Row out;
  for (const double x : logits) {
    out.push_back(x - maximum - std::log(total));
  }
  return out;
}

}  // namespace baton::reference
