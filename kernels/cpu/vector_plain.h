#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

// The vector type that kernels are written against, without instruction sets: four lanes of the
// compiler's own vectors.
//
// What a vector type offers (VectorAvx2 and VectorAvx512Bf16 offer the same):
//   Float      kLanes floats
//   Words      kLanes 32-bit words, each two bf16 values, the even one in the low half
//   Pairs      Words ready to be multiplied; Expand is done once however often a word is used
//   Dot        acc + even * even + odd * odd, lane by lane
//   ...First   only the first n lanes: others are zero, or not written, or not read
// Multiplications and additions are fused only where a function says so: the compiler has no
// choice.
//
// This header and the tile headers live in unnamed namespaces although they are headers: each
// kernels_*.cc compiles them with other instructions, and a shared copy could end up on a processor
// that lacks them.
namespace baton {
namespace {

struct VectorPlain {
  static constexpr int kLanes = 4;
  // Shapes of register tiles, rows and vectors.
  static constexpr int kMatMulRows = 4;
  static constexpr int kMatMulVectors = 2;
  static constexpr int kAttentionRows = 4;
  static constexpr int kAttentionVectors = 2;

  using Float = float __attribute__((vector_size(16)));
  using Words = std::uint32_t __attribute__((vector_size(16)));
  struct Pairs {
    Float even;
    Float odd;
  };

  static Float Zero() { return Float{}; }
  static Float Set(float x) { return Float{x, x, x, x}; }
  static Float Load(const float* p) { return LoadAs<Float>(p, kLanes); }
  static Float LoadFirst(const float* p, int n) { return LoadAs<Float>(p, n); }
  static void Store(float* p, Float x) { std::memcpy(p, &x, sizeof x); }
  static void StoreFirst(float* p, Float x, int n) {
    std::memcpy(p, &x, sizeof(float) * static_cast<unsigned>(n));
  }
  // Lanes [0, n) of x, the rest of other.
  static Float SelectFirst(Float x, Float other, int n) {
    const Words lane = {0, 1, 2, 3};
    return lane < static_cast<std::uint32_t>(n) ? x : other;
  }

  static Words SetWord(std::uint32_t x) { return Words{x, x, x, x}; }
  static Words LoadWords(const std::uint32_t* p) { return LoadAs<Words>(p, kLanes); }
  static Words LoadWordsFirst(const std::uint32_t* p, int n) { return LoadAs<Words>(p, n); }
  static void StoreWordsFirst(std::uint32_t* p, Words x, int n) {
    std::memcpy(p, &x, sizeof(std::uint32_t) * static_cast<unsigned>(n));
  }
  static Words And(Words a, Words b) { return a & b; }

  static Pairs Expand(Words x) { return {AsFloat(x << 16), AsFloat(x & 0xffff0000u)}; }
  static Float Dot(Float acc, const Pairs& a, const Pairs& b) {
    acc = acc + a.even * b.even;  // products of two bf16 values are exact in float
    return acc + a.odd * b.odd;
  }

  static Float Add(Float a, Float b) { return a + b; }
  static Float Subtract(Float a, Float b) { return a - b; }
  static Float Multiply(Float a, Float b) { return a * b; }
  static Float Divide(Float a, Float b) { return a / b; }
  static Float MultiplyAdd(Float a, Float b, Float c) { return a * b + c; }  // not fused here
  static Float Max(Float a, Float b) { return a > b ? a : b; }  // b where either is NaN

  static float ReduceAdd(Float x) { return (x[0] + x[2]) + (x[1] + x[3]); }
  static float ReduceMax(Float x) {
    const float low = x[0] > x[2] ? x[0] : x[2];
    const float high = x[1] > x[3] ? x[1] : x[3];
    return low > high ? low : high;
  }

  // 2^x within 3e-7 of its value; exactly 1 at 0, exactly 0 below -126; NaN stays NaN.
  static Float Exp2(Float x) {
    const Float lowest = Set(-126.0f);
    const Float highest = Set(127.0f);
    const Float clamped = Max(lowest, x > highest ? highest : x);
    // Adding and taking away 1.5 * 2^23 rounds to the nearest integer.
    const Float magic = Set(12582912.0f);
    const Float shifted = clamped + magic;
    const Float fraction = clamped - (shifted - magic);
    Float p = Set(0.00133813021f);
    p = p * fraction + Set(0.00966636837f);
    p = p * fraction + Set(0.0555038117f);
    p = p * fraction + Set(0.240223497f);
    p = p * fraction + Set(0.693147182f);
    p = p * fraction + Set(1.0f);
    const Words exponent = (AsWords(shifted) + 127u) << 23;
    return x < lowest ? Zero() : p * AsFloat(exponent);
  }

  static Words PackPairs(Float even, Float odd) {
    return (Round(even) >> 16) | (Round(odd) & 0xffff0000u);
  }
  static void StoreBFloat16First(std::uint16_t* p, Float x, int n) {
    const Words rounded = Round(x);
    for (int i = 0; i < n; ++i) {
      p[i] = static_cast<std::uint16_t>(rounded[i] >> 16);
    }
  }

 private:
  static Float AsFloat(Words x) { return reinterpret_cast<Float>(x); }
  static Words AsWords(Float x) { return reinterpret_cast<Words>(x); }

  template <typename T, typename P>
  static T LoadAs(const P* p, int n) {
    T x{};
    std::memcpy(&x, p, sizeof(P) * static_cast<unsigned>(n));
    return x;
  }

  // bf16 in the upper half of each word: to nearest even; a NaN stays one.
  static Words Round(Float x) {
    const Words bits = AsWords(x);
    const Words rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    return (bits & 0x7fffffffu) > 0x7f800000u ? (bits | 0x400000u) : rounded;
  }
};

}  // namespace
}  // namespace baton
