// Runs one small kernel, right or with a bug, over a few shapes and says how it went.
// Usage: PROGRAM KERNEL BUG, see kRuns. Exit code 0: right; 1: wrong values; 2: the emulator
// reports a kernel error; 3: wrong usage; other: a sanitizer's report.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/emulation/planted_kernels.cuh"

// TSan goes on after a race, and ends with its own code.
extern "C" const char* __tsan_default_options() {
  return "exitcode=66:halt_on_error=0";
}
extern "C" const char* __asan_default_options() {
  return "exitcode=67";
}

namespace baton::BATON_CUDA_NAMESPACE {
namespace {

constexpr unsigned kSeed = 5;

// Largest error seen, infinity for a NaN.
class Worst {
 public:
  void Add(float value, double expected) {
    const double error = std::fabs(static_cast<double>(value) - expected);
    worst_ = error >= 0 && worst_ >= error ? worst_ : error >= 0 ? error : HUGE_VAL;
  }
  double error() const { return worst_; }

 private:
  double worst_ = 0;
};

std::vector<float> RandomFloats(std::size_t count) {
  std::mt19937 random(kSeed);
  std::uniform_real_distribution<float> uniform(0.5f, 1.5f);
  std::vector<float> values(count);
  for (float& value : values) {
    value = uniform(random);
  }
  return values;
}

template <Bug kBug>
double RunSumRows() {
  Worst worst;
  for (const int columns : {1, 127, 128, 1000}) {
    constexpr int kRows = 3;
    const std::vector<float> values = RandomFloats(static_cast<std::size_t>(kRows * columns));
    std::vector<float> sums(kRows);
    Launch(&SumRows<kBug>, dim3(kRows), dim3(kMergeWarps * 32), kMergeWarps * sizeof(float),
           nullptr, values.data(), columns, sums.data());
    for (int row = 0; row < kRows; ++row) {
      double expected = 0;
      for (int i = 0; i < columns; ++i) {
        expected += static_cast<double>(values[static_cast<std::size_t>(row * columns + i)]);
      }
      worst.Add(sums[static_cast<std::size_t>(row)], expected);
    }
  }
  return worst.error();
}

template <Bug kBug>
double RunMultiplyStaged(const std::vector<int>& step_counts) {
  Worst worst;
  for (const int steps : step_counts) {
    const int depth = steps * kTileDepth;
    constexpr int kRowsOfA = kTileWarps * 16;
    const std::vector<float> values =
        RandomFloats(static_cast<std::size_t>((kRowsOfA + 8) * depth));
    std::vector<BFloat16> operands;
    for (const float value : values) {
      operands.push_back(FromFloat<BFloat16>(value));
    }
    const BFloat16* const a = operands.data();
    const BFloat16* const b = a + kRowsOfA * depth;
    std::vector<float> d(kRowsOfA * 8);
    Launch(&MultiplyStaged<kBug>, dim3(1), dim3(kTileWarps * 32),
           2 * (kRowsOfA + 8) * kTileDepth * sizeof(BFloat16), nullptr, a, b, depth, d.data());
    for (int row = 0; row < kRowsOfA; ++row) {
      for (int column = 0; column < 8; ++column) {
        double expected = 0;
        for (int i = 0; i < depth; ++i) {
          expected += static_cast<double>(ToFloat(a[row * depth + i])) *
                      static_cast<double>(ToFloat(b[column * depth + i]));
        }
        worst.Add(d[static_cast<std::size_t>(row * 8 + column)], expected);
      }
    }
  }
  return worst.error();
}

template <Bug kBug>
double RunSumBlocks() {
  constexpr int kSequences = 2;
  constexpr int kBlocksOfRow = 3;
  const std::vector<float> pool = RandomFloats(8 * kPagedTokens);
  const std::vector<int> table = {5, 0, 3, 7, 2, 6};
  std::vector<float> sums(kSequences);
  Launch(&SumBlocks<kBug>, dim3(kSequences), dim3(32), 0, nullptr, pool.data(), table.data(),
         kBlocksOfRow, sums.data());
  Worst worst;
  for (std::size_t row = 0; row < kSequences; ++row) {
    double expected = 0;
    for (std::size_t i = 0; i < kBlocksOfRow * kPagedTokens; ++i) {
      const auto block = static_cast<std::size_t>(table[row * kBlocksOfRow + i / kPagedTokens]);
      expected += static_cast<double>(pool[block * kPagedTokens + i % kPagedTokens]);
    }
    worst.Add(sums[row], expected);
  }
  return worst.error();
}

struct Run {
  const char* kernel;
  const char* bug;
  double (*run)();
};

double RunStagedRight() {
  return RunMultiplyStaged<Bug::kNone>({1, 2, 3, 4, 7});
}

constexpr Run kRuns[] = {
    {"sum_rows", "none", &RunSumRows<Bug::kNone>},
    {"sum_rows", "no_barrier_before_merge", &RunSumRows<Bug::kNoBarrierBeforeMerge>},
    {"sum_rows", "divergent_barrier", &RunSumRows<Bug::kDivergentBarrier>},
    {"multiply_staged", "none", &RunStagedRight},
    {"multiply_staged", "no_barrier_after_wait",
     [] { return RunMultiplyStaged<Bug::kNoBarrierAfterWait>({5}); }},
    {"multiply_staged", "no_barrier_at_loop_end",
     [] { return RunMultiplyStaged<Bug::kNoBarrierAtLoopEnd>({5}); }},
    {"multiply_staged", "no_barrier_at_end_of_two_steps",
     [] { return RunMultiplyStaged<Bug::kNoBarrierAtLoopEnd>({2}); }},
    {"multiply_staged", "wait_for_one_group_too_few",
     [] { return RunMultiplyStaged<Bug::kWaitForOneGroupTooFew>({5}); }},
    {"multiply_staged", "swapped_fragments",
     [] { return RunMultiplyStaged<Bug::kSwappedFragments>({5}); }},
    {"sum_blocks", "none", &RunSumBlocks<Bug::kNone>},
    {"sum_blocks", "past_block_table", &RunSumBlocks<Bug::kPastBlockTable>},
};

int Main(int argc, char** argv) {
  for (const Run& run : kRuns) {
    if (argc != 3 || std::strcmp(run.kernel, argv[1]) != 0 || std::strcmp(run.bug, argv[2]) != 0) {
      continue;
    }
    const double error = run.run();
    const std::string kernel_error = emulated::TakeKernelError();
    std::printf("error %g\nkernel error: %s\n", error, kernel_error.c_str());
    std::fflush(stdout);
    // Sums of up to 1000 numbers near 1, in float.
    return !kernel_error.empty() ? 2 : error < 1e-3 ? 0 : 1;
  }
  std::fprintf(stderr, "usage: PROGRAM KERNEL BUG\n");
  return 3;
}

}  // namespace
}  // namespace baton::BATON_CUDA_NAMESPACE

int main(int argc, char** argv) {
  return baton::BATON_CUDA_NAMESPACE::Main(argc, argv);
}
