#include "bench/machine_limits.h"

#include <time.h>

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "common/check.h"
#include "kernels/cpu/host_memory.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace baton {
namespace {

constexpr std::size_t kReadBytes = std::size_t{512} << 20;
constexpr int kPeakAttempts = 4;
constexpr int kReadAttempts = 2;
constexpr std::size_t kLineWords = 8;

double Seconds(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Runs work(thread), which returns what it did, on every thread at once; the sum of the rates.
double SumOfRates(int threads, const std::function<double(int thread)>& work) {
  std::vector<double> rates(static_cast<std::size_t>(threads));
  std::barrier start(threads);
  const auto run = [&](int thread) {
    start.arrive_and_wait();
    const double begin = Seconds(CLOCK_THREAD_CPUTIME_ID);
    const double done = work(thread);
    rates[static_cast<std::size_t>(thread)] = done / (Seconds(CLOCK_THREAD_CPUTIME_ID) - begin);
  };
  {
    std::vector<std::jthread> others;
    for (int thread = 1; thread < threads; ++thread) {
      others.emplace_back(run, thread);
    }
    run(0);
  }
  double sum = 0;
  for (const double rate : rates) {
    sum += rate;
  }
  return sum;
}

#if defined(__x86_64__)

// Chains that do not wait for each other, as many as the latency of an instruction needs.
__attribute__((target("avx512f,avx512bf16"))) double VectorBf16Flops() {
  constexpr int kChains = 24;
  constexpr int kRounds = 400000;
  __m512 acc[kChains];
  for (__m512& x : acc) {
    x = _mm512_setzero_ps();
  }
  auto a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3f803f80));
  asm volatile("" : "+v"(a));
  for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) {
      acc[c] = _mm512_dpbf16_ps(acc[c], a, a);
    }
  }
  for (const __m512& x : acc) {
    asm volatile("" : : "v"(x));
  }
  return 64.0 * kChains * kRounds;
}

__attribute__((target("avx2,fma"))) double VectorFloatFlops() {
  constexpr int kChains = 12;
  constexpr int kRounds = 1200000;
  __m256 acc[kChains];
  for (__m256& x : acc) {
    x = _mm256_setzero_ps();
  }
  __m256 a = _mm256_set1_ps(1.0f);
  asm volatile("" : "+x"(a));
  for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      acc[c] = _mm256_fmadd_ps(a, a, acc[c]);
    }
  }
  for (const __m256& x : acc) {
    asm volatile("" : : "x"(x));
  }
  return 16.0 * kChains * kRounds;
}

// Eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The operating system gives tiles to a process that asks for them.
bool HasAmx() {
  constexpr unsigned kAmxBf16 = 1u << 22;
  constexpr unsigned kAmxTile = 1u << 24;
  constexpr int kArchRequestPermission = 0x1023;
  constexpr int kTileData = 18;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kAmxBf16) != 0 &&
         (edx & kAmxTile) != 0 && syscall(SYS_arch_prctl, kArchRequestPermission, kTileData) == 0;
}

// In assembly as a whole: g++ 12's _tile_loadconfig does not say that it reads all of its operand,
// so the stores into it may be dropped. Tiles 0 to 3 are sums of products of tiles 4 to 7.
double TileBf16Flops() {
  constexpr int kRounds = 300000;
  const TileConfig config;
  int rounds = kRounds;
  asm volatile(
      "ldtilecfg %[config]\n\t"
      "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\t"
      "tilezero %%tmm4\n\ttilezero %%tmm5\n\ttilezero %%tmm6\n\ttilezero %%tmm7\n\t"
      "1:\n\t"
      "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t"
      "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
      "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\t"
      "tdpbf16ps %%tmm7, %%tmm5, %%tmm3\n\t"
      "decl %[rounds]\n\t"
      "jnz 1b\n\t"
      "tilerelease"
      : [rounds] "+r"(rounds)
      : [config] "m"(config)
      : "cc");
  return 4.0 * 16 * 16 * 32 * 2 * kRounds;
}

// Reads `kStreams` equal parts of the words in turn, 256 bytes of each, and asks for lines
// `kBytesAhead` before their use.
template <std::size_t kStreams, std::size_t kBytesAhead>
__attribute__((target("avx2"))) void ReadVectors(std::span<const std::uint64_t> words) {
  constexpr std::size_t kStepWords = 4 * kLineWords;
  const std::size_t part = words.size() / kStreams / kStepWords * kStepWords;
  __m256i sums[8] = {};
  for (std::size_t i = 0; i < part; i += kStepWords) {
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
      const std::uint64_t* step = words.data() + stream * part + i;
      if constexpr (kBytesAhead > 0) {
        for (std::size_t line = 0; line < 4; ++line) {
          __builtin_prefetch(step + kBytesAhead / sizeof(*step) + line * kLineWords);
        }
      }
#pragma GCC unroll 8
      for (std::size_t lane = 0; lane < 8; ++lane) {
        const auto* vector = reinterpret_cast<const __m256i*>(step) + lane;
        sums[lane] = _mm256_add_epi64(sums[lane], _mm256_loadu_si256(vector));
      }
    }
  }
  for (const __m256i& sum : sums) {
    asm volatile("" : : "x"(sum));
  }
}

bool HasAvx2() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
}
bool HasAvx512Bf16() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bf16") != 0;
}

#endif

double ScalarFlops() {
  constexpr int kRounds = 1000000;
  float acc[16] = {};
  float a = 1.0f;
  asm volatile("" : "+r"(a));
  for (int i = 0; i < kRounds; ++i) {
    for (float& x : acc) {
      x += a * a;
    }
  }
  for (float& x : acc) {
    asm volatile("" : "+r"(x));
  }
  return 32.0 * kRounds;
}

void ReadScalar(std::span<const std::uint64_t> words) {
  std::uint64_t sums[kLineWords] = {};
  for (std::size_t i = 0; i + kLineWords <= words.size(); i += kLineWords) {
    __builtin_prefetch(words.data() + i + 64 * kLineWords);
    for (std::size_t lane = 0; lane < kLineWords; ++lane) {
      sums[lane] += words[i + lane];
    }
  }
  for (std::uint64_t& sum : sums) {
    asm volatile("" : "+r"(sum));
  }
}

using Arithmetic = double (*)();
using Reader = void (*)(std::span<const std::uint64_t>);

// nullptr: this processor has no such instructions.
Arithmetic ArithmeticOf(std::string_view isa) {
#if defined(__x86_64__)
  if (isa == "amx") {
    return HasAmx() ? TileBf16Flops : nullptr;
  }
  if (isa == "avx512bf16") {
    return HasAvx512Bf16() ? VectorBf16Flops : nullptr;
  }
  if (isa == "avx2") {
    return HasAvx2() ? VectorFloatFlops : nullptr;
  }
  if (isa == "plain") {
    return HasAvx2() ? VectorFloatFlops : ScalarFlops;
  }
  return nullptr;
#else
  return isa == "plain" ? ScalarFlops : nullptr;
#endif
}

std::vector<Reader> Readers() {
#if defined(__x86_64__)
  if (HasAvx2()) {
    return {ReadVectors<1, 0>, ReadVectors<1, 4096>, ReadVectors<2, 0>, ReadVectors<4, 1024>};
  }
#endif
  return {ReadScalar};
}

// Mapped once and kept, in huge pages where the system gives them: with small ones the processor's
// own look-ahead ends at every page.
std::span<const std::uint64_t> ReadBuffer() {
  static const std::unique_ptr<DeviceMemory> memory = [] {
    auto allocated = AllocateHostMemory(kReadBytes);
    BATON_CHECK(allocated.ok());
    return *std::move(allocated);
  }();
  return {reinterpret_cast<const std::uint64_t*>(memory->data()),
          kReadBytes / sizeof(std::uint64_t)};
}

}  // namespace

double ProcessCpuSeconds() {
  return Seconds(CLOCK_PROCESS_CPUTIME_ID);
}

double MeasurePeakFlops(std::string_view isa, int threads) {
  const Arithmetic arithmetic = ArithmeticOf(isa);
  if (arithmetic == nullptr) {
    return 0;
  }
  double best = 0;
  for (int attempt = 0; attempt < kPeakAttempts; ++attempt) {
    best = std::max(best, SumOfRates(threads, [&](int) { return arithmetic(); }));
  }
  return best;
}

double MeasurePeakFlops() {
  const double vector = MeasurePeakFlops("avx512bf16", 1);
  return vector > 0 ? vector : MeasurePeakFlops("plain", 1);
}

double MeasureReadBytesPerSecond(int threads) {
  const std::span<const std::uint64_t> words = ReadBuffer();
  const std::size_t part =
      words.size() / static_cast<std::size_t>(threads) / kLineWords * kLineWords;
  double best = 0;
  for (const Reader reader : Readers()) {
    for (int attempt = 0; attempt < kReadAttempts; ++attempt) {
      best = std::max(best, SumOfRates(threads, [&](int thread) {
                        reader(words.subspan(static_cast<std::size_t>(thread) * part, part));
                        return static_cast<double>(part * sizeof(std::uint64_t));
                      }));
    }
  }
  return best;
}

}  // namespace baton
