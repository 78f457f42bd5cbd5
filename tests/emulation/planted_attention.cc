// One of the attention kernels, right or compiled with a bug of kernels/cuda/planted_bugs.cuh, on a
// small batch against a reference in double. BATON_PLANTED_DECODE: the decode kernel, else the
// prefill kernel. Exit codes as planted_program.cc.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#ifdef BATON_PLANTED_DECODE
#include "kernels/cuda/decode_attention.cu"
#else
#include "kernels/cuda/prefill_attention.cu"
#endif

extern "C" const char* __tsan_default_options() {
  return "exitcode=66:halt_on_error=0";
}
extern "C" const char* __asan_default_options() {
  return "exitcode=67";
}

namespace baton::BATON_CUDA_NAMESPACE {
namespace {

constexpr unsigned kSeed = 11;
constexpr int kHeads = 6;
constexpr int kKvHeads = 2;
constexpr int kGroup = kHeads / kKvHeads;
constexpr int kDim = 64;
constexpr int kRows = 9;
// A finished segment, and one that the rows continue: six steps of 64 keys, both with ragged ends.
constexpr int kFirstTokens = 150;
constexpr int kSecondTokens = 150;
constexpr int kSegments = 2;
constexpr int kPositions = kFirstTokens + kSecondTokens + kRows;
// Of a score's factor: large, so that few keys decide and a wrong score shows.
constexpr float kScale = 0.4f;

// What both sides read. Two rows of the same prompt follow each other by one token.
struct Batch {
  std::vector<float> query;    // [kRows, kHeads, kDim]
  std::vector<BFloat16> pool;  // [blocks, 2, kKvHeads, 16, kDim]
  std::vector<int>
      block_table;  // blocks of the first segment, then of the second; nothing after them
  std::vector<int> segment_blocks;  // [kSegments]
  std::vector<int> row_segments;    // [kRows + 1]
  std::vector<int> entry_segment;   // [kRows * kSegments], as the two below
  std::vector<int> delta;
  std::vector<int> visible;
  std::vector<float> rope;  // [kPositions, kDim / 2, 2]
};

int BlocksOf(int tokens) {
  return (tokens + kBlockTokens - 1) / kBlockTokens;
}

Batch MakeBatch() {
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  Batch batch;
  batch.query.resize(static_cast<std::size_t>(kRows * kHeads * kDim));
  for (float& value : batch.query) {
    value = normal(random);
  }
  const int blocks = BlocksOf(kFirstTokens) + BlocksOf(kSecondTokens + kRows);
  batch.pool.resize(static_cast<std::size_t>(blocks * 2 * kKvHeads * kBlockTokens * kDim));
  for (BFloat16& value : batch.pool) {
    value = FromFloat<BFloat16>(normal(random));
  }
  batch.block_table.resize(static_cast<std::size_t>(blocks));  // and no more memory than that
  std::iota(batch.block_table.begin(), batch.block_table.end(), 0);
  std::shuffle(batch.block_table.begin(), batch.block_table.end(), random);
  batch.segment_blocks = {0, BlocksOf(kFirstTokens)};
  batch.row_segments.push_back(0);
  for (int row = 0; row < kRows; ++row) {
    const int seen = kSecondTokens + row + 1;
    batch.entry_segment.insert(batch.entry_segment.end(), {0, 1});
    batch.delta.insert(batch.delta.end(), {kFirstTokens + seen - 1, seen - 1});
    batch.visible.insert(batch.visible.end(), {kFirstTokens, seen});
    batch.row_segments.push_back(static_cast<int>(batch.delta.size()));
  }
  for (int position = 0; position < kPositions; ++position) {
    for (int pair = 0; pair < kDim / 2; ++pair) {
      const double angle = position * std::pow(10000.0, -2.0 * pair / kDim);
      batch.rope.push_back(static_cast<float>(std::cos(angle)));
      batch.rope.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return batch;
}

// Element i of the key or value (side 0, 1) of a token.
double Stored(const Batch& batch, std::size_t segment, int token, int side, int kv_head, int i) {
  const int first = batch.segment_blocks[segment];
  const int block = batch.block_table[static_cast<std::size_t>(first + token / kBlockTokens)];
  const int at =
      (((block * 2 + side) * kKvHeads + kv_head) * kBlockTokens + token % kBlockTokens) * kDim + i;
  return static_cast<double>(ToFloat(batch.pool[static_cast<std::size_t>(at)]));
}

// Softmax over all keys that a row sees, in two passes.
std::vector<double> Reference(const Batch& batch, int row, int head) {
  std::vector<double> scores;
  std::vector<double> sums(kDim);
  double weight = 0;
  for (int pass = 0; pass < 2; ++pass) {
    const double maximum = pass == 0 ? 0 : *std::max_element(scores.begin(), scores.end());
    std::size_t key = 0;
    for (std::size_t segment = 0; segment < kSegments; ++segment) {
      const std::size_t entry = static_cast<std::size_t>(row) * kSegments + segment;
      const float* query = &batch.query[static_cast<std::size_t>((row * kHeads + head) * kDim)];
      for (int token = 0; token < batch.visible[entry]; ++token, ++key) {
        if (pass == 1) {
          const double share = std::exp(scores[key] - maximum);
          weight += share;
          for (int i = 0; i < kDim; ++i) {
            sums[static_cast<std::size_t>(i)] +=
                share * Stored(batch, segment, token, 1, head / kGroup, i);
          }
          continue;
        }
        double score = 0;
        for (int i = 0; i < kDim / 2; ++i) {
          const double angle = batch.delta[entry] * std::pow(10000.0, -2.0 * i / kDim);
          const double low = static_cast<double>(query[i]);
          const double high = static_cast<double>(query[i + kDim / 2]);
          score += (low * std::cos(angle) - high * std::sin(angle)) *
                   Stored(batch, segment, token, 0, head / kGroup, i);
          score += (low * std::sin(angle) + high * std::cos(angle)) *
                   Stored(batch, segment, token, 0, head / kGroup, i + kDim / 2);
        }
        scores.push_back(score * static_cast<double>(kScale));
      }
    }
  }
  for (double& sum : sums) {
    sum /= weight;
  }
  return sums;
}

// Largest absolute error over all outputs; infinity for a NaN.
double ErrorOf(const Batch& batch, const std::vector<BFloat16>& output) {
  double worst = 0;
  for (int row = 0; row < kRows; ++row) {
    for (int head = 0; head < kHeads; ++head) {
      const std::vector<double> expected = Reference(batch, row, head);
      for (std::size_t i = 0; i < kDim; ++i) {
        const auto at = static_cast<std::size_t>((row * kHeads + head) * kDim) + i;
        const double error = std::fabs(static_cast<double>(ToFloat(output[at])) - expected[i]);
        worst = std::isnan(error) ? HUGE_VAL : std::max(worst, error);
      }
    }
  }
  return worst;
}

int Main() {
  Batch batch = MakeBatch();
  std::vector<BFloat16> output(static_cast<std::size_t>(kRows * kHeads * kDim));
  cuda::AttentionParams attention;
  attention.query = batch.query.data();
  attention.query_stride = kHeads * kDim;
  attention.pool = {reinterpret_cast<std::byte*>(batch.pool.data()),
                    std::int64_t{2} * kKvHeads * kBlockTokens * kDim * kElementBytes, kKvHeads};
  attention.lists = {batch.row_segments.data(),   batch.entry_segment.data(),
                     batch.delta.data(),          batch.visible.data(),
                     batch.segment_blocks.data(), batch.block_table.data()};
  attention.rope = batch.rope.data();
  attention.scale = kScale;
  attention.heads = kHeads;
  attention.head_dim = kDim;
  attention.output = output.data();
  attention.output_stride = kHeads * kDim;
#ifdef BATON_PLANTED_DECODE
  const int splits = cuda::SplitsFor(kPositions);
  std::vector<int> rows(kRows);
  for (int row = 0; row < kRows; ++row) {
    rows[static_cast<std::size_t>(row)] = row;
  }
  std::vector<float> partials(cuda::DecodeScratchFloats(kRows, kHeads, kDim, splits));
  const int code =
      LaunchDecodeAttention({attention, rows.data(), kRows, splits, partials.data()}, nullptr);
#else
  // Two tiles, the second of one row.
  const std::vector<int> first_row = {0, kRows - 1};
  const std::vector<int> tile_rows = {kRows - 1, 1};
  const int code =
      LaunchPrefillAttention({attention, first_row.data(), tile_rows.data(), 2}, nullptr);
#endif
  const double error = ErrorOf(batch, output);
  const std::string kernel_error = emulated::TakeKernelError();
  std::printf("launch %d\nerror %g\nkernel error: %s\n", code, error, kernel_error.c_str());
  std::fflush(stdout);
  // Outputs of up to about 3 are rounded to 8 bits of fraction; queries and weights of the prefill
  // kernel, too.
  return code != 0 || !kernel_error.empty() ? 2 : error < 0.05 ? 0 : 1;
}

}  // namespace
}  // namespace baton::BATON_CUDA_NAMESPACE

int main() {
  return baton::BATON_CUDA_NAMESPACE::Main();
}
