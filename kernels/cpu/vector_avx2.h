#pragma once

#include <immintrin.h>

#include <cstdint>

// Eight lanes of AVX2 and FMA. See vector_plain.h for what each function does.
namespace baton {
namespace {

struct VectorAvx2 {
  static constexpr int kLanes = 8;
  // 8 accumulators, 4 halves of weights and 2 of the row: 14 of 16 registers.
  static constexpr int kMatMulRows = 4;
  static constexpr int kMatMulVectors = 2;
  static constexpr int kAttentionRows = 4;
  static constexpr int kAttentionVectors = 2;

  using Float = __m256;
  using Words = __m256i;
  struct Pairs {
    Float even;
    Float odd;
  };

  static Float Zero() { return _mm256_setzero_ps(); }
  static Float Set(float x) { return _mm256_set1_ps(x); }
  static Float Load(const float* p) { return _mm256_loadu_ps(p); }
  static Float LoadFirst(const float* p, int n) {
    return n >= kLanes ? Load(p) : _mm256_maskload_ps(p, FirstMask(n));
  }
  static void Store(float* p, Float x) { _mm256_storeu_ps(p, x); }
  static void StoreFirst(float* p, Float x, int n) {
    if (n >= kLanes) {
      Store(p, x);
    } else {
      _mm256_maskstore_ps(p, FirstMask(n), x);
    }
  }
  static Float SelectFirst(Float x, Float other, int n) {
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(FirstMask(n)));
  }

  static Words SetWord(std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static Words LoadWords(const std::uint32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Words LoadWordsFirst(const std::uint32_t* p, int n) {
    return _mm256_maskload_epi32(reinterpret_cast<const int*>(p), FirstMask(n));
  }
  static void StoreWordsFirst(std::uint32_t* p, Words x, int n) {
    _mm256_maskstore_epi32(reinterpret_cast<int*>(p), FirstMask(n), x);
  }
  static Words And(Words a, Words b) { return _mm256_and_si256(a, b); }

  static Pairs Expand(Words x) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(x, UpperHalves()))};
  }
  static Float Dot(Float acc, const Pairs& a, const Pairs& b) {
    acc = _mm256_fmadd_ps(a.even, b.even, acc);
    return _mm256_fmadd_ps(a.odd, b.odd, acc);
  }

  static Float Add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float Subtract(Float a, Float b) { return _mm256_sub_ps(a, b); }
  static Float Multiply(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float Divide(Float a, Float b) { return _mm256_div_ps(a, b); }
  static Float MultiplyAdd(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static Float Max(Float a, Float b) { return _mm256_max_ps(a, b); }  // b where either is NaN

  static float ReduceAdd(Float x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
  static float ReduceMax(Float x) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
  }

  static Float Exp2(Float x) {
    const Float lowest = Set(-126.0f);
    const Float clamped = _mm256_max_ps(lowest, _mm256_min_ps(Set(127.0f), x));
    const Float whole = _mm256_round_ps(clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Float fraction = _mm256_sub_ps(clamped, whole);
    Float p = Set(0.00133813021f);
    p = _mm256_fmadd_ps(p, fraction, Set(0.00966636837f));
    p = _mm256_fmadd_ps(p, fraction, Set(0.0555038117f));
    p = _mm256_fmadd_ps(p, fraction, Set(0.240223497f));
    p = _mm256_fmadd_ps(p, fraction, Set(0.693147182f));
    p = _mm256_fmadd_ps(p, fraction, Set(1.0f));
    const __m256i exponent =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127)), 23);
    const Float result = _mm256_mul_ps(p, _mm256_castsi256_ps(exponent));
    return _mm256_and_ps(result, _mm256_cmp_ps(x, lowest, _CMP_NLT_UQ));
  }

  static Words PackPairs(Float even, Float odd) {
    return _mm256_or_si256(_mm256_srli_epi32(Round(even), 16),
                           _mm256_and_si256(Round(odd), UpperHalves()));
  }
  static void StoreBFloat16First(std::uint16_t* p, Float x, int n) {
    const __m256i words = _mm256_srli_epi32(Round(x), 16);
    const __m128i halves =
        _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    if (n >= kLanes) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p), halves);
      return;
    }
    std::uint16_t values[kLanes];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(values), halves);
    for (int i = 0; i < n; ++i) {
      p[i] = values[i];
    }
  }

 private:
  static __m256i UpperHalves() { return _mm256_set1_epi32(static_cast<int>(0xffff0000u)); }

  static __m256i FirstMask(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }

  static __m256i Round(Float x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, quiet, is_nan);
  }
};

}  // namespace
}  // namespace baton
