#include "tools/random_weights.h"

#include <bit>
#include <cmath>

#include "common/byte_io.h"
#include "common/check.h"

namespace baton {
namespace {

// SplitMix64: small, and the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15U;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9U;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
    return mixed ^ (mixed >> 31);
  }

  // 0 to `bound` - 1.
  int Below(int bound) {
    return static_cast<int>((Next() >> 32) * static_cast<std::uint64_t>(bound) >> 32);
  }

  std::uint8_t Byte() { return static_cast<std::uint8_t>(Next() >> 56); }

  // About normal, of mean 0 and standard deviation 1: the sum of twelve uniform values.
  double Normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) {
      sum += static_cast<double>(Next() >> 32) / 4294967296.0;
    }
    return sum;
  }

 private:
  std::uint64_t state_;
};

void PutHalf(double value, ByteWriter& writer) {
  BATON_CHECK(value >= 0 && value < 65504);
  std::uint32_t bits = 0;
  if (value < std::ldexp(1.0, -14)) {
    bits = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(value, 24)));
  } else {
    int exponent = 0;
    const double fraction =
        std::frexp(value, &exponent);  // value = fraction * 2^exponent, fraction in [0.5, 1)
    // A fraction that rounds up to 1 carries into the exponent, as it should.
    bits = (static_cast<std::uint32_t>(exponent + 13) << 10) +
           static_cast<std::uint32_t>(std::nearbyint(std::ldexp(fraction, 11)));
  }
  writer.Put(static_cast<std::uint16_t>(bits));
}

// `value` rounded to bf16, to nearest even.
std::uint16_t RoundToBF16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

void PutRandomBytes(std::size_t count, Random& random, ByteWriter& writer) {
  for (std::size_t i = 0; i < count; ++i) {
    writer.Put(random.Byte());
  }
}

// One block of random values with mean near 0 and about the standard deviation `spread`. The
// divisors are the standard deviations of the integers that the scales multiply: 4.6 of 4 bits, 9.2
// of 5, 18.5 of 6, 74 of 8.
void PutBlock(ElementType type, double spread, Random& random, ByteWriter& writer) {
  switch (type) {
    case ElementType::kF32:
      writer.Put(std::bit_cast<std::uint32_t>(static_cast<float>(spread * random.Normal())));
      return;
    case ElementType::kF16: {
      const double value = spread * random.Normal();
      ByteWriter magnitude;
      PutHalf(std::abs(value), magnitude);
      ByteReader bits(magnitude.bytes());
      const std::uint16_t sign = value < 0 ? 0x8000 : 0;
      writer.Put(static_cast<std::uint16_t>(bits.Get<std::uint16_t>().value() | sign));
      return;
    }
    case ElementType::kBF16:
      writer.Put(RoundToBF16(static_cast<float>(spread * random.Normal())));
      return;
    case ElementType::kQ4_0:
      PutHalf(spread / 4.6, writer);
      PutRandomBytes(16, random, writer);
      return;
    case ElementType::kQ5_0:
      PutHalf(spread / 9.2, writer);
      PutRandomBytes(20, random, writer);
      return;
    case ElementType::kQ8_0:
      PutHalf(spread / 74, writer);
      PutRandomBytes(32, random, writer);
      return;
    case ElementType::kQ4_1:
    case ElementType::kQ5_1: {
      // The minimum is negative, so that values lie around 0.
      const bool four_bits = type == ElementType::kQ4_1;
      ByteWriter minimum;
      PutHalf(spread / (four_bits ? 4.6 : 9.2), writer);
      PutHalf(spread * (four_bits ? 7.5 / 4.6 : 15.5 / 9.2), minimum);
      ByteReader bits(minimum.bytes());
      writer.Put(static_cast<std::uint16_t>(bits.Get<std::uint16_t>().value() | 0x8000));
      PutRandomBytes(four_bits ? 16 : 20, random, writer);
      return;
    }
    case ElementType::kQ4_K:
    case ElementType::kQ5_K: {
      // With sub-scales and minimums of 6 random bits, scale * quant - minimum has this standard
      // deviation.
      const bool four_bits = type == ElementType::kQ4_K;
      const double scale = spread / (four_bits ? 258 : 527);
      PutHalf(scale, writer);
      PutHalf(scale * (four_bits ? 7.5 : 15.5), writer);
      PutRandomBytes(12 + (four_bits ? 128 : 160), random, writer);
      return;
    }
    case ElementType::kQ6_K:
      // Signed sub-scales of standard deviation 74.
      PutRandomBytes(208, random, writer);
      PutHalf(spread / (18.5 * 74), writer);
      return;
  }
}

double Spread(const ModelConfig& config, WeightKind kind) {
  const double per_input = 1.0 / std::sqrt(ShapeOf(config, kind).columns);
  switch (kind) {
    case WeightKind::kQuery:
    case WeightKind::kKey:
    case WeightKind::kAttentionOutput:
    case WeightKind::kDown:
      return 2 * per_input;
    case WeightKind::kTokenEmbedding:
    case WeightKind::kHead:
    case WeightKind::kValue:
    case WeightKind::kGate:
    case WeightKind::kUp:
      return per_input;
    case WeightKind::kAttentionNorm:
    case WeightKind::kFeedForwardNorm:
    case WeightKind::kOutputNorm:
      return 0.1;
  }
  CheckFailed(__FILE__, __LINE__, "a WeightKind that is not in the enumeration");
}

std::string MakeNorm(const ModelConfig& config, WeightKind kind, Random& random) {
  // The last norm spreads the logits, so that the best token stands clear of the second.
  const double mean = kind == WeightKind::kOutputNorm ? 3 : 1;
  ByteWriter writer;
  for (int i = 0; i < config.hidden; ++i) {
    const double value = mean * (1 + Spread(config, kind) * random.Normal());
    writer.Put(std::bit_cast<std::uint32_t>(static_cast<float>(value)));
  }
  return std::move(writer).Take();
}

}  // namespace

RandomWeight MakeRandomWeight(const ModelConfig& config,
                              const WeightName& name,
                              ElementType type,
                              std::uint64_t seed) {
  // A stream of its own for each weight: the order in which they are made does not matter.
  Random random(seed);
  random = Random(random.Next() ^ (static_cast<std::uint64_t>(name.layer.value()) << 8 |
                                   static_cast<std::uint64_t>(name.kind)));
  RandomWeight weight{.type = IsNorm(name.kind) ? ElementType::kF32 : type,
                      .shape = ShapeOf(config, name.kind)};
  if (IsNorm(name.kind)) {
    weight.rows.push_back(MakeNorm(config, name.kind, random));
    return weight;
  }
  const auto block = static_cast<int>(FormatOf(type).values);
  BATON_CHECK(weight.shape.columns % block == 0);
  for (int row = 0; row < weight.shape.rows; ++row) {
    ByteWriter writer;
    for (int column = 0; column < weight.shape.columns; column += block) {
      PutBlock(type, Spread(config, name.kind), random, writer);
    }
    weight.rows.push_back(std::move(writer).Take());
  }
  return weight;
}

}  // namespace baton
