// Runs the engine on the shapes of SmolLM2-135M and of a Llama of 1B, with random weights, and
// prints what it reaches beside the ceilings that the same device shows in the same run.
//
// Usage: gpu_bench --device cuda        on a GPU
//        gpu_bench --device emulated    on the host's processor: a tiny shape, to show that this
//                                       program works; without times, which would mean nothing
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/engine_runner.h"
#include "bench/work_model.h"
#include "common/status_macros.h"
#include "kernels/backends.h"
#include "model/checkpoint.h"
#include "tests/gpu/gpu_ceilings.h"
#include "tests/gpu/gpu_report.h"
#include "tests/gpu/shape_model.h"
#include "tests/support/tiny_checkpoint.h"

namespace baton {
namespace {

constexpr int kRounds = 3;  // the median counts

struct Plan {
  std::vector<ModelConfig> shapes;
  std::vector<Figure> figures;
  CeilingSizes ceilings;
  int max_batch_tokens = 0;
  std::size_t kv_pool_bytes = 0;
  bool rates = true;
};

Figure Prefill(int tokens) {
  return {.name = absl::StrCat("prefill of ", tokens),
          .kind = FigureKind::kPrefill,
          .prompt_tokens = tokens};
}

Figure Decode(int streams, int depth, int steps) {
  return {.name = absl::StrCat("decode, ", streams, streams == 1 ? " stream" : " streams", " at ",
                               depth),
          .kind = FigureKind::kDecode,
          .decode = {.streams = streams, .depth = depth, .steps = steps}};
}

Plan GpuPlan() {
  return {.shapes = {{.name = "SmolLM2-135M",
                      .layers = 30,
                      .hidden = 576,
                      .feed_forward = 1536,
                      .heads = 9,
                      .kv_heads = 3,
                      .head_dim = 64,
                      .vocabulary = 49152,
                      .context_tokens = 8192,
                      .rms_epsilon = 1e-5f,
                      .rope_base = 100000,
                      .tied_head = true},
                     {.name = "Llama 1B",
                      .layers = 16,
                      .hidden = 2048,
                      .feed_forward = 8192,
                      .heads = 32,
                      .kv_heads = 8,
                      .head_dim = 64,
                      .vocabulary = 128256,
                      .context_tokens = 8192,
                      .rms_epsilon = 1e-5f,
                      .rope_base = 500000,
                      .tied_head = true}},
          .figures = {Decode(1, 2048, 128), Decode(8, 2048, 64), Decode(64, 2048, 64), Prefill(512),
                      Prefill(2048)},
          .max_batch_tokens = 2048,
          .kv_pool_bytes = std::size_t{8} << 30};
}

Plan EmulatedPlan() {
  return {.shapes = {{.name = "tiny",
                      .layers = 2,
                      .hidden = 64,
                      .feed_forward = 96,
                      .heads = 2,
                      .kv_heads = 1,
                      .head_dim = 64,
                      .vocabulary = 512,
                      .context_tokens = 256,
                      .rms_epsilon = 1e-5f,
                      .rope_base = 10000,
                      .tied_head = true}},
          .figures = {Decode(1, 20, 2), Decode(3, 20, 2), Prefill(33)},
          .ceilings = {.copy_bytes = 1 << 16, .gemm_side = 32, .rounds = 1},
          .max_batch_tokens = 64,
          .kv_pool_bytes = std::size_t{4} << 20,
          .rates = false};
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

absl::Status RunShape(const ModelConfig& shape,
                      const Plan& plan,
                      const Limits& ceilings,
                      std::unique_ptr<Backend> backend) {
  const TemporaryFolder folder;
  RETURN_IF_ERROR(WriteShapeModel(shape, folder.path().string()));
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                   Checkpoint::Open(folder.path().string()));
  ASSIGN_OR_RETURN(const std::unique_ptr<EngineRunner> runner,
                   EngineRunner::CreateOn(std::move(backend),
                                          {.max_batch_tokens = plan.max_batch_tokens,
                                           .kv_pool_bytes = plan.kv_pool_bytes},
                                          *checkpoint));
  std::printf("%s, random weights in bf16, %.1f MB of them read in each step\n", shape.name.c_str(),
              kBf16Bytes * (LinearWeights(shape) + HeadWeights(shape)) / 1e6);
  for (const Figure& figure : plan.figures) {
    std::vector<double> seconds;
    for (int round = 0; round < (plan.rates ? kRounds : 1); ++round) {
      ASSIGN_OR_RETURN(const Timing timing, runner->Measure(figure));
      seconds.push_back(timing.wall_seconds);
    }
    if (plan.rates) {
      std::printf("  %s\n",
                  FormatRow(figure, figure.WorkFor(shape), ceilings, Median(seconds)).c_str());
    } else {
      std::printf("  %-26s ran: %.0f tokens\n", figure.name.c_str(), figure.tokens());
    }
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

absl::StatusOr<Limits> PrintDevice(const Plan& plan, cuda::Device& device) {
  const cuda::DeviceInfo& info = device.info();
  ASSIGN_OR_RETURN(const Limits ceilings, MeasureCeilings(device, plan.ceilings));
  if (!plan.rates) {
    std::printf("device: EMULATION on the host's processor; nothing here says how fast a GPU is\n");
    return ceilings;
  }
  std::printf("device: %s, %d multiprocessors, compute capability %d.%d, %.0f GB\n",
              info.name.c_str(), info.multiprocessors, info.compute_capability / 10,
              info.compute_capability % 10, static_cast<double>(info.memory_bytes) / 1e9);
  std::printf(
      "ceilings, measured now: copy inside device memory %.0f GB/s read and written, "
      "bf16 product of %d x %d %.0f TFLOP/s\n",
      ceilings.bytes_per_second / 1e9, plan.ceilings.gemm_side, plan.ceilings.gemm_side,
      ceilings.flops_per_second / 1e12);
  std::printf(
      "columns: time; tokens; bytes that must move, and their share of the first ceiling; "
      "arithmetic, and its share of the second\n");
  return ceilings;
}

absl::Status Run(const std::string& name) {
  const Plan plan = name == "cuda" ? GpuPlan() : EmulatedPlan();
  std::optional<Limits> ceilings;
  for (const ModelConfig& shape : plan.shapes) {
    ASSIGN_OR_RETURN(ChosenBackend chosen, CreateBackend({.device = name}));
    if (!ceilings) {
      ASSIGN_OR_RETURN(ceilings, PrintDevice(plan, *chosen.device));
    }
    RETURN_IF_ERROR(RunShape(shape, plan, *ceilings, std::move(chosen.backend)));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  const std::string device = argc == 3 && std::strcmp(argv[1], "--device") == 0 ? argv[2] : "";
  if (device != "cuda" && device != "emulated") {
    std::fprintf(stderr, "usage: gpu_bench --device cuda|emulated\n");
    return 2;
  }
  const absl::Status status = baton::Run(device);
  if (!status.ok()) {
    std::fprintf(stderr, "gpu_bench: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
