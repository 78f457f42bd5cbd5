#include "bench/machine_limits.h"

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace baton {
namespace {

constexpr std::size_t kReadBytes = std::size_t{256} << 20;

// Keeps a value that nothing else uses.
void Keep(float value) {
  asm volatile("" : : "x"(value));
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bf16"))) double Bf16Flops(int rounds) {
  constexpr int kChains = 24;
  __m512 acc[kChains];
  for (__m512& x : acc) {
    x = _mm512_setzero_ps();
  }
  auto a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3f803f80));
  asm volatile("" : "+v"(a));
  for (int i = 0; i < rounds; ++i) {
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) {
      acc[c] = _mm512_dpbf16_ps(acc[c], a, a);
    }
  }
  for (const __m512& x : acc) {
    asm volatile("" : : "v"(x));
  }
  return 64.0 * kChains * rounds;
}

__attribute__((target("avx2,fma"))) double FloatFlops(int rounds) {
  constexpr int kChains = 12;
  __m256 acc[kChains];
  for (__m256& x : acc) {
    x = _mm256_setzero_ps();
  }
  __m256 a = _mm256_set1_ps(1.0f);
  asm volatile("" : "+x"(a));
  for (int i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      acc[c] = _mm256_fmadd_ps(a, a, acc[c]);
    }
  }
  for (const __m256& x : acc) {
    asm volatile("" : : "x"(x));
  }
  return 16.0 * kChains * rounds;
}
#endif

double MultiplyAdds(int rounds) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16")) {
    return Bf16Flops(rounds);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return FloatFlops(rounds);
  }
#endif
  float acc[16] = {};
  float a = 1.0f;
  asm volatile("" : "+x"(a));
  for (int i = 0; i < rounds; ++i) {
    for (float& x : acc) {
      x += a * a;
    }
  }
  Keep(acc[0]);
  return 32.0 * rounds;
}

}  // namespace

double ProcessCpuSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double MeasurePeakFlops() {
  double best = 0;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const double start = ProcessCpuSeconds();
    const double flops = MultiplyAdds(200000);
    best = std::max(best, flops / (ProcessCpuSeconds() - start));
  }
  return best;
}

double MeasureReadBytesPerSecond() {
  static std::vector<std::uint64_t> words(kReadBytes / sizeof(std::uint64_t), 1);
  double best = 0;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const double start = ProcessCpuSeconds();
    std::uint64_t sums[8] = {};
    for (std::size_t i = 0; i < words.size(); i += 8) {
      __builtin_prefetch(&words[i] + 512);
      for (std::size_t lane = 0; lane < 8; ++lane) {
        sums[lane] += words[i + lane];
      }
    }
    for (std::uint64_t& sum : sums) {
      asm volatile("" : "+r"(sum));
    }
    best = std::max(best, static_cast<double>(kReadBytes) / (ProcessCpuSeconds() - start));
  }
  return best;
}

}  // namespace baton
