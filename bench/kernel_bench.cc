// Times the CPU kernels on the shapes of SmolLM2-135M (30 layers, width 576, 9 query and 3
// key/value heads of 64, feed-forward 1536, vocabulary 49152) and compares each figure with the
// machine's limits, measured in the same run.
//
//   kernel-bench [isa] [threads]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/machine_limits.h"
#include "common/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/rope.h"

namespace baton {
namespace {

constexpr int kLayers = 30;
constexpr int kWidth = 576;
constexpr int kHeads = 9;
constexpr int kKvHeads = 3;
constexpr int kHeadDim = 64;
constexpr int kFeedForward = 1536;
constexpr int kVocabulary = 49152;
constexpr std::size_t kProducts = 4;  // of a layer
constexpr std::size_t kGated = 2;     // the one of these that is activated

void Check(const absl::Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::exit(1);
  }
}

struct Seconds {
  double cpu;
  double wall;
};

// The best of several runs: noise only adds.
Seconds Time(int runs, const std::function<void()>& body) {
  Seconds best = {1e9, 1e9};
  for (int i = 0; i < runs; ++i) {
    const double cpu = ProcessCpuSeconds();
    const auto wall = std::chrono::steady_clock::now();
    body();
    best.cpu = std::min(best.cpu, ProcessCpuSeconds() - cpu);
    best.wall = std::min(
        best.wall, std::chrono::duration<double>(std::chrono::steady_clock::now() - wall).count());
  }
  return best;
}

struct Limits {
  double flops;
  double bytes_per_second;
};

// Of one core with the instructions of the backend's code path.
Limits MeasureLimits(const Backend& backend) {
  const std::string arithmetic(backend.arithmetic());
  return {MeasurePeakFlops(arithmetic.substr(arithmetic.find('-') + 1), 1),
          MeasureReadBytesPerSecond()};
}

// Times `body` with the machine's limits measured before and after. The limit is the time that the
// flops or the bytes need at the least on one core, whichever is longer.
void Report(const Backend& backend,
            const std::string& name,
            int runs,
            double flops,
            double bytes,
            const std::function<void()>& body) {
  const Limits before = MeasureLimits(backend);
  const Seconds time = Time(runs, body);
  const Limits after = MeasureLimits(backend);
  const Limits limits{(before.flops + after.flops) / 2,
                      (before.bytes_per_second + after.bytes_per_second) / 2};
  const double limit = std::max(flops / limits.flops, bytes / limits.bytes_per_second);
  std::printf(
      "%-24s cpu %8.2f ms  wall %8.2f ms  %6.1f of %4.0f GFLOP/s  %5.1f of %4.1f GB/s  %3.0f%% of "
      "the limit\n",
      name.c_str(), time.cpu * 1e3, time.wall * 1e3, flops / time.cpu * 1e-9, limits.flops * 1e-9,
      bytes / time.cpu * 1e-9, limits.bytes_per_second * 1e-9, 100 * limit / time.cpu);
}

std::unique_ptr<PackedWeight> MakeWeight(Backend& backend, int rows, int columns) {
  auto weight = backend.Pack(rows, columns, [](int first, int, std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = 0.01f * static_cast<float>((static_cast<std::size_t>(first) + i * 7) % 13) - 0.06f;
    }
    return absl::OkStatus();
  });
  Check(weight.status());
  return *std::move(weight);
}

struct Model {
  std::vector<std::unique_ptr<PackedWeight>> layers;  // kProducts for each layer, in order of use
  std::unique_ptr<PackedWeight> head;
};

Model MakeModel(Backend& backend) {
  Model model;
  for (int layer = 0; layer < kLayers; ++layer) {
    model.layers.push_back(MakeWeight(backend, (kHeads + 2 * kKvHeads) * kHeadDim, kWidth));
    model.layers.push_back(MakeWeight(backend, kWidth, kWidth));
    model.layers.push_back(MakeWeight(backend, 2 * kFeedForward, kWidth));
    model.layers.push_back(MakeWeight(backend, kWidth, kFeedForward));
  }
  model.head = MakeWeight(backend, kVocabulary, kWidth);
  return model;
}

void BenchMatMul(Backend& backend) {
  const Model model = MakeModel(backend);
  constexpr int kMostRows = 512;
  std::vector<BFloat16> input(kMostRows * kFeedForward);
  for (std::size_t i = 0; i < input.size(); ++i) {
    input[i] = ToBFloat16(std::sin(static_cast<float>(i)));  // constant data would cost less power
  }
  std::vector<BFloat16> gated(kMostRows * kFeedForward);
  std::vector<float> output(64 * kVocabulary);
  // As in a step: the first product of a layer is kept as it is, two are added to the residual.
  const auto multiply = [&](const PackedWeight& weight, std::size_t product, int rows) {
    const TensorView<const BFloat16> view(input.data(), rows, weight.columns());
    if (product == kGated) {
      Check(backend.GatedMatMul(
          {.input = view, .weight = &weight, .output = {gated.data(), rows, weight.rows() / 2}}));
    } else {
      Check(backend.MatMul({.input = view,
                            .weight = &weight,
                            .output = {output.data(), rows, weight.rows()},
                            .accumulate = product % 2 == 1}));
    }
  };
  for (const int rows : {1, 2, 4, 8, 16, 32, 64, 128, 512}) {
    const int head_rows = rows > 64 ? 1 : rows;  // a prompt needs the head once
    double flops = 0;
    double bytes = 0;
    const auto count = [&](const PackedWeight& weight, int weight_rows) {
      flops += 2.0 * weight_rows * weight.rows() * weight.columns();
      bytes += rows > 32 ? 2.0 * weight.rows() * weight.columns()
                         : static_cast<double>(weight.bytes_of_few_rows());
    };
    for (const auto& weight : model.layers) {
      count(*weight, rows);
    }
    count(*model.head, head_rows);
    Report(backend, "linear layers, M = " + std::to_string(rows), rows > 64 ? 3 : 9, flops, bytes,
           [&] {
             for (std::size_t i = 0; i < model.layers.size(); ++i) {
               multiply(*model.layers[i], i % kProducts, rows);
             }
             multiply(*model.head, 0, head_rows);
           });
  }
}

void BenchAttention(Backend& backend) {
  constexpr int kContext = 2048;
  constexpr int kBlocks = kContext / kBlockTokens;
  // As in a step, where the weights have been read since: no cache holds what is attended to.
  constexpr int kPools = 8;
  const KvLayout layout = backend.LayoutFor(kLayers, kKvHeads, kHeadDim);
  auto memory = backend.Allocate(kPools * kBlocks * layout.block_bytes());
  Check(memory.status());
  const KvPoolView pool = MakeKvPoolView((*memory)->data(), kPools * kBlocks, layout);
  auto rope = backend.MakeRopeTable(RopeFrequencies(kHeadDim, 100000), kContext + 1);
  Check(rope.status());
  std::vector<std::vector<BlockId>> pools(kPools);
  for (int i = 0; i < kPools * kBlocks; ++i) {
    const int slot = i / kBlocks * kBlocks + i * 37 % kBlocks;
    pools[static_cast<std::size_t>(i / kBlocks)].push_back(
        BlockId(static_cast<std::uint32_t>(slot)));
  }
  const std::vector<BlockId>& blocks = pools[0];
  std::vector<float> fused(static_cast<std::size_t>(kContext) * 15 * kHeadDim);
  for (std::size_t i = 0; i < fused.size(); ++i) {
    fused[i] = std::sin(static_cast<float>(i % 1000));
  }
  const auto part = [&](int head, int heads, int rows) {
    return TensorView<const float>(fused.data() + head * kHeadDim, rows, heads, kHeadDim)
        .WithRowStride(15 * kHeadDim);
  };
  std::vector<int> position(kContext);
  std::vector<BlockId> block(kContext);
  std::vector<int> offset(kContext);
  for (int t = 0; t < kContext; ++t) {
    const auto i = static_cast<std::size_t>(t);
    position[i] = t;
    block[i] = blocks[i / kBlockTokens];
    offset[i] = t % kBlockTokens;
  }
  Report(backend, "write 2048 tokens", 3, 0, static_cast<double>(kBlocks * layout.block_bytes()),
         [&] {
           for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
             Check(backend.RotateAndWriteKv({.key = part(kHeads, kKvHeads, kContext),
                                             .value = part(kHeads + kKvHeads, kKvHeads, kContext),
                                             .rotation = position,
                                             .rope = rope->get(),
                                             .block = block,
                                             .offset = offset,
                                             .pool = pool,
                                             .layer = LayerIndex(layer)}));
           }
         });

  std::size_t turn = 0;
  std::vector<BFloat16> output(static_cast<std::size_t>(kContext) * kHeads * kHeadDim);
  // Rows [first, first + rows) of each of `sequences` sequences, which share a pool's blocks out.
  const auto attend = [&](int sequences, int first, int rows) {
    const std::vector<BlockId>& turns_blocks = pools[turn++ % kPools];
    std::vector<SegmentRef> segments;
    std::vector<int> row_segments;
    std::vector<int> entry_segment;
    std::vector<int> delta;
    std::vector<int> visible;
    for (int sequence = 0; sequence < sequences; ++sequence) {
      const int tokens = kContext / sequences;
      segments.push_back(
          {.blocks = std::span(turns_blocks)
                         .subspan(static_cast<std::size_t>(sequence * tokens / kBlockTokens)),
           .tokens = tokens});
      for (int t = 0; t < rows; ++t) {
        row_segments.push_back(static_cast<int>(entry_segment.size()));
        entry_segment.push_back(sequence);
        delta.push_back(first + t);
        visible.push_back(first + t + 1);
      }
    }
    const auto all_rows = static_cast<int>(entry_segment.size());
    row_segments.push_back(all_rows);
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      Check(backend.PagedAttention({.query = part(0, kHeads, all_rows),
                                    .pool = pool,
                                    .layer = LayerIndex(layer),
                                    .rope = rope->get(),
                                    .segments = segments,
                                    .row_segments = row_segments,
                                    .entry_segment = entry_segment,
                                    .delta = delta,
                                    .visible_tokens = visible,
                                    .scale = 0.125f,
                                    .output = {output.data(), all_rows, kHeads, kHeadDim}}));
    }
  };
  const auto bench = [&](const std::string& name, int sequences, int first, int rows) {
    double scores = 0;
    for (int t = 0; t < rows; ++t) {
      scores += sequences * (first + t + 1);
    }
    const double flops = scores * kHeads * kHeadDim * 4.0 * kLayers;
    const int blocks_read = sequences * ((first + rows + kBlockTokens - 1) / kBlockTokens);
    const double bytes = blocks_read * static_cast<double>(layout.block_bytes());
    Report(backend, name, rows > 1 ? 3 : 40, flops, bytes, [&] { attend(sequences, first, rows); });
  };
  bench("attention, prefill 512", 1, 0, 512);
  bench("attention, prefill 2048", 1, 0, 2048);
  bench("attention, decode 2048", 1, 2047, 1);
  bench("attention, decode 8 x 112", 8, 111, 1);
}

void BenchRows(Backend& backend) {
  constexpr int kRows = 512;
  const std::vector<float> hidden(kRows * kWidth, 0.3f);
  std::vector<BFloat16> output(kRows * kWidth);
  std::vector<float> weight(kWidth, 1.0f);
  Report(backend, "rms norm, 512 rows x 61", 5, 0, 6.0 * kRows * kWidth * (2 * kLayers + 1), [&] {
    for (int layer = 0; layer < 2 * kLayers + 1; ++layer) {
      Check(backend.RmsNorm({.input = {hidden.data(), kRows, kWidth},
                             .weight = {weight.data(), kWidth},
                             .epsilon = 1e-5f,
                             .output = {output.data(), kRows, kWidth}}));
    }
  });
  std::vector<float> logits(16 * kVocabulary);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = std::sin(static_cast<float>(i)) * 5;
  }
  std::vector<SelectedToken> selected(16);
  const std::vector<TokenId> banned = {TokenId(0)};
  for (const auto& [name, row] :
       {std::pair<const char*, TokenSelection>{"16 greedy", {.temperature = 0}},
        {"16 sampled", {.temperature = 1}},
        {"16 sampled, top_p 0.9", {.temperature = 0.7f, .top_p = 0.9f}},
        {"16 greedy, one banned", {.temperature = 0, .banned = banned}},
        {"16 greedy, 5 logprobs", {.temperature = 0, .logprobs = 5}}}) {
    const std::vector<TokenSelection> rows(16, row);
    Report(backend, name, 5, 0, 4.0 * 16 * kVocabulary, [&] {
      Check(backend.SelectTokens(
          {.logits = {logits.data(), 16, kVocabulary}, .rows = rows, .selected = selected}));
    });
  }
}

int Main(int argc, char** argv) {
  const CpuOptions options{.isa = argc > 1 ? argv[1] : "auto",
                           .threads = argc > 2 ? std::atoi(argv[2]) : 1};
  auto backend = CreateCpuBackend(options);
  Check(backend.status());
  std::printf("%s, %d threads\n", std::string((*backend)->arithmetic()).c_str(), options.threads);
  BenchMatMul(**backend);
  BenchAttention(**backend);
  BenchRows(**backend);
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  return baton::Main(argc, argv);
}
