#pragma once

#include <immintrin.h>

#include <cstdint>

// Sixteen lanes of AVX-512 with bf16 dot products. See vector_plain.h for what each function does.
//
// The dot product instruction rounds in its own way and treats denormals as zero: that is why the
// code path is part of what two workers compare.
namespace baton {
namespace {

struct VectorAvx512Bf16 {
  static constexpr int kLanes = 16;
  // 24 accumulators, 2 or 4 vectors of weights and one broadcast word: at most 29 of 32 registers.
  static constexpr int kMatMulRows = 12;
  static constexpr int kMatMulVectors = 2;
  static constexpr int kAttentionRows = 6;
  static constexpr int kAttentionVectors = 4;

  using Float = __m512;
  using Words = __m512i;
  using Pairs = __m512bh;

  static Float Zero() { return _mm512_setzero_ps(); }
  static Float Set(float x) { return _mm512_set1_ps(x); }
  static Float Load(const float* p) { return _mm512_loadu_ps(p); }
  static Float LoadFirst(const float* p, int n) { return _mm512_maskz_loadu_ps(FirstMask(n), p); }
  static void Store(float* p, Float x) { _mm512_storeu_ps(p, x); }
  static void StoreFirst(float* p, Float x, int n) { _mm512_mask_storeu_ps(p, FirstMask(n), x); }
  static Float SelectFirst(Float x, Float other, int n) {
    return _mm512_mask_mov_ps(other, FirstMask(n), x);
  }

  static Words SetWord(std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static Words LoadWords(const std::uint32_t* p) { return _mm512_loadu_si512(p); }
  static Words LoadWordsFirst(const std::uint32_t* p, int n) {
    return _mm512_maskz_loadu_epi32(FirstMask(n), p);
  }
  static void StoreWords(std::uint32_t* p, Words x) { _mm512_storeu_si512(p, x); }
  static void StoreWordsFirst(std::uint32_t* p, Words x, int n) {
    _mm512_mask_storeu_epi32(p, FirstMask(n), x);
  }
  static Words And(Words a, Words b) { return _mm512_and_si512(a, b); }

  // Whether no half of a word is an infinity or NaN.
  static bool IsFinite(Words x) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    return _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent) == 0;
  }

  static Pairs Expand(Words x) { return reinterpret_cast<__m512bh>(x); }
  static Float Dot(Float acc, Pairs a, Pairs b) { return _mm512_dpbf16_ps(acc, a, b); }

  static Float Add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float Subtract(Float a, Float b) { return _mm512_sub_ps(a, b); }
  static Float Multiply(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float Divide(Float a, Float b) { return _mm512_div_ps(a, b); }
  static Float MultiplyAdd(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float Max(Float a, Float b) { return _mm512_max_ps(a, b); }  // b where either is NaN

  static float ReduceAdd(Float x) { return _mm512_reduce_add_ps(x); }
  static float ReduceMax(Float x) { return _mm512_reduce_max_ps(x); }

  static Float Exp2(Float x) {
    const Float lowest = Set(-126.0f);
    const Float clamped = _mm512_max_ps(lowest, _mm512_min_ps(Set(127.0f), x));
    const Float whole =
        _mm512_roundscale_ps(clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Float fraction = _mm512_sub_ps(clamped, whole);
    Float p = Set(0.00133813021f);
    p = _mm512_fmadd_ps(p, fraction, Set(0.00966636837f));
    p = _mm512_fmadd_ps(p, fraction, Set(0.0555038117f));
    p = _mm512_fmadd_ps(p, fraction, Set(0.240223497f));
    p = _mm512_fmadd_ps(p, fraction, Set(0.693147182f));
    p = _mm512_fmadd_ps(p, fraction, Set(1.0f));
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, lowest, _CMP_NLT_UQ), p, whole);
  }

  // 2^x for x <= 0, within 7e-6 of its value and never below 2^-126; NaN stays NaN. Enough for a
  // weight that is rounded to bf16.
  static Float Exp2OfNonPositive(Float x) {
    const Float clamped = _mm512_max_ps(Set(-126.0f), x);
    const Float whole =
        _mm512_roundscale_ps(clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Float fraction = _mm512_sub_ps(clamped, whole);
    Float p = Set(0.00965671029f);
    p = _mm512_fmadd_ps(p, fraction, Set(0.0558382829f));
    p = _mm512_fmadd_ps(p, fraction, Set(0.240225301f));
    p = _mm512_fmadd_ps(p, fraction, Set(0.693136734f));
    p = _mm512_fmadd_ps(p, fraction, Set(1.0f));
    return _mm512_scalef_ps(p, whole);
  }

  static Words PackPairs(Float even, Float odd) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(Halves(even)),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(Halves(odd)), 16));
  }
  static void StoreBFloat16First(std::uint16_t* p, Float x, int n) {
    _mm256_mask_storeu_epi16(p, FirstMask(n), Halves(x));
  }
  // 32 values one after the other.
  static void StoreBFloat16Twice(std::uint16_t* p, Float first, Float second) {
    _mm512_storeu_si512(p, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
  }

 private:
  static __mmask16 FirstMask(int n) {
    return static_cast<__mmask16>(n >= kLanes ? 0xffffu : (1u << n) - 1u);
  }
  static __m256i Halves(Float x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }
};

}  // namespace
}  // namespace baton
