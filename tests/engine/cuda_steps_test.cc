// Steps of the forward pass on the CUDA backend, with the emulated device below: what is captured
// and replayed, what a step costs in copies and memory, and what happens when the device is lost.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/transformer.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/emulation/host_device.h"
#include "tests/support/tiny_checkpoint.h"

namespace baton {
namespace {

using emulated::HostDevice;

constexpr int kRows = 16;
constexpr int kPoolBlocks = 64;
constexpr int kBlocksOfSequence = 20;

struct Result {
  std::vector<float> logits;
  std::vector<std::byte> pool;
};

class CudaStepsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto device = std::make_unique<HostDevice>();
    device_ = device.get();
    backend_ = *cuda::CreateCudaBackend(std::move(device));
    auto transformer = Transformer::Load(*model_, *backend_, {.rows = kRows, .logit_rows = kRows});
    ASSERT_TRUE(transformer.ok()) << transformer.status();
    transformer_ = *std::move(transformer);
    const ModelConfig& config = model_->config();
    const KvLayout layout = backend_->LayoutFor(config.layers, config.kv_heads, config.head_dim);
    memory_ = *backend_->Allocate(kPoolBlocks * layout.block_bytes());
    pool_ = MakeKvPoolView(memory_->data(), kPoolBlocks, layout);
    for (int s = 0; s < kRows; ++s) {
      blocks_.push_back(BlocksOf(s));
    }
  }

  // Blocks of sequence `s`; those of different sequences overlap in nothing.
  std::vector<BlockId> BlocksOf(int s) const {
    std::vector<BlockId> blocks;
    for (int i = 0; i < 4; ++i) {
      blocks.emplace_back(static_cast<std::uint32_t>((s * 4 + i) * 7 % kPoolBlocks));
    }
    return blocks;
  }

  static TokenId TokenAt(int s, int position) {
    return TokenId(static_cast<std::uint32_t>(3 + (s * 131 + position * 17) % 500));
  }

  // The next token of sequences 0 to count - 1, each at a position of its own.
  ForwardBatch DecodeStep(int count, int position) {
    ForwardBatch batch;
    for (int s = 0; s < count; ++s) {
      batch.segments.push_back(
          {.blocks = blocks_[static_cast<std::size_t>(s)], .tokens = position + s % 3 + 1});
      batch.AddRow(TokenAt(s, position + s % 3), position + s % 3, s);
      batch.logit_rows.push_back(s);
    }
    return batch;
  }

  // `eager`: with a hook after each layer, which no repeated step can have.
  absl::StatusOr<TensorView<const float>> Forward(const ForwardBatch& batch, bool eager) {
    Transformer::StepHooks hooks;
    if (eager) {
      hooks.on_layer = [](LayerIndex) {};
    }
    return transformer_->Forward(batch, pool_, hooks);
  }

  Result Run(const ForwardBatch& batch, bool eager) {
    const auto logits = Forward(batch, eager);
    EXPECT_TRUE(logits.ok()) << logits.status();
    Result result{.logits = std::vector<float>(static_cast<std::size_t>(logits->rows()) *
                                               static_cast<std::size_t>(logits->row_size())),
                  .pool = std::vector<std::byte>(memory_->size_bytes())};
    EXPECT_TRUE(backend_
                    ->Copy({.destination = reinterpret_cast<std::byte*>(result.logits.data()),
                            .source = reinterpret_cast<const std::byte*>(logits->data()),
                            .bytes = result.logits.size() * sizeof(float),
                            .direction = CopyDirection::kDeviceToHost})
                    .ok());
    EXPECT_TRUE(backend_
                    ->Copy({.destination = result.pool.data(),
                            .source = memory_->data(),
                            .bytes = result.pool.size(),
                            .direction = CopyDirection::kDeviceToHost})
                    .ok());
    EXPECT_TRUE(backend_->Synchronize().ok());
    return result;
  }

  const TinyCheckpoint model_;
  HostDevice* device_ = nullptr;  // the backend's
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<DeviceMemory> memory_;
  KvPoolView pool_;
  std::vector<std::vector<BlockId>> blocks_;  // by sequence
};

// Rows on the grid of buckets and off it, so that there are idle ones: they change no logit, and
// not one byte of the pool.
TEST_F(CudaStepsTest, AReplayedStepGivesTheBitsOfAnEagerOne) {
  for (const int rows : {1, 2, 3, 5, 8, 11, 16}) {
    SCOPED_TRACE(testing::Message() << rows << " rows");
    for (const int position : {0, 1, 30}) {
      const ForwardBatch batch = DecodeStep(rows, position);
      const Result eager = Run(batch, true);
      EXPECT_TRUE(std::ranges::any_of(eager.logits, [](float x) { return x != 0; }));
      for (int round = 0; round < 3; ++round) {
        const Result repeated = Run(batch, false);
        EXPECT_EQ(repeated.logits, eager.logits) << position << ", round " << round;
        EXPECT_EQ(repeated.pool, eager.pool) << position << ", round " << round;
      }
    }
  }
  // One graph for each of the buckets 1, 2, 4, 8 and 16, captured at their second step.
  EXPECT_EQ(device_->counts().captures, 5);
}

TEST_F(CudaStepsTest, ARepeatedStepIsOneCopyAndOneLaunchAndTakesNoMemory) {
  Run(DecodeStep(5, 10), false);
  Run(DecodeStep(6, 12), false);
  device_->ResetCounts();

  ASSERT_TRUE(Forward(DecodeStep(7, 14), false).ok());

  const HostDevice::Counts counts = device_->counts();
  EXPECT_EQ(counts.copies, 1);
  EXPECT_EQ(counts.graph_launches, 1);
  EXPECT_EQ(counts.other_work, 0);
  EXPECT_EQ(counts.fills, 0);
  EXPECT_EQ(counts.captures, 0);
  EXPECT_EQ(counts.device_allocations, 0);
  EXPECT_EQ(counts.pinned_allocations, 0);
  EXPECT_LT(counts.copied_bytes, 2048u);
}

TEST_F(CudaStepsTest, AnEagerStepIsOneCopyToo) {
  ForwardBatch chunk;
  const std::vector<BlockId> blocks = BlocksOf(0);
  chunk.segments.push_back({.blocks = blocks, .tokens = 13});
  for (int position = 0; position < 13; ++position) {
    chunk.AddRow(TokenAt(0, position), position, 0);
  }
  chunk.logit_rows = {12};
  Run(chunk, true);
  for (const bool eager : {true, false}) {
    device_->ResetCounts();
    ASSERT_TRUE(Forward(chunk, eager).ok());
    const HostDevice::Counts counts = device_->counts();
    EXPECT_EQ(counts.copies, 1);
    EXPECT_EQ(counts.graph_launches, 0) << "a chunk of a prompt is no step of decoding rows";
    EXPECT_EQ(counts.device_allocations, 0);
    EXPECT_EQ(counts.pinned_allocations, 0);
  }
}

TEST_F(CudaStepsTest, ChoosingTokensIsACopyEachWayAndTakesNoMemory) {
  const auto logits = Forward(DecodeStep(4, 3), false);
  ASSERT_TRUE(logits.ok());
  const std::vector<TokenId> history = {TokenId(5), TokenId(6), TokenId(5)};
  const std::vector<TokenSelection> rows(
      4, {.temperature = 0.8f, .repetition_penalty = 1.1f, .history = history, .logprobs = 5});
  std::vector<SelectedToken> selected(4);
  device_->ResetCounts();

  ASSERT_TRUE(backend_->SelectTokens({.logits = *logits, .rows = rows, .selected = selected}).ok());

  const HostDevice::Counts counts = device_->counts();
  EXPECT_EQ(counts.copies, 2);
  EXPECT_EQ(counts.waits, 1);
  EXPECT_EQ(counts.device_allocations, 0);
  EXPECT_EQ(counts.pinned_allocations, 0);
  EXPECT_EQ(selected[0].alternatives.size(), 5u);
}

// The context grows past what one split of attention takes: another grid, another graph.
TEST_F(CudaStepsTest, ALongerContextGetsAGraphOfItsOwn) {
  std::vector<BlockId> blocks;
  for (std::uint32_t i = 0; i < kBlocksOfSequence; ++i) {
    blocks.emplace_back(i * 3 % kPoolBlocks);
  }
  const auto step = [&](int position) {
    ForwardBatch batch;
    batch.segments.push_back({.blocks = blocks, .tokens = position + 1});
    batch.AddRow(TokenAt(0, position), position, 0);
    batch.logit_rows = {0};
    return batch;
  };
  for (const int position : {126, 127, 128, 129, 300}) {
    const Result eager = Run(step(position), true);
    for (int round = 0; round < 2; ++round) {
      EXPECT_EQ(Run(step(position), false).logits, eager.logits) << position;
    }
  }
  EXPECT_EQ(device_->counts().captures, 2);
}

// Longer lists than any before: the buffer moves, and with it what graphs read.
TEST_F(CudaStepsTest, GraphsAreCapturedAnewWhenTheirMemoryMoves) {
  const ForwardBatch small = DecodeStep(2, 9);
  const Result expected = Run(small, true);
  Run(small, false);
  Run(small, false);
  ASSERT_EQ(device_->counts().captures, 1);
  ForwardBatch large = DecodeStep(2, 9);
  std::vector<BlockId> many = BlocksOf(1);
  many.resize(20'000, BlockId(0));
  large.segments[1].blocks = many;

  EXPECT_EQ(Run(large, false).logits, expected.logits);
  EXPECT_EQ(device_->counts().captures, 2);
  EXPECT_EQ(Run(small, false).logits, expected.logits);
  EXPECT_EQ(device_->counts().captures, 2);
}

TEST_F(CudaStepsTest, AListThatIsNotTheStepsIsRefused) {
  const ForwardBatch batch = DecodeStep(1, 0);
  const StepProgram program = *backend_->PrepareSteps({.rows = 4,
                                                       .logit_rows = 4,
                                                       .heads = 3,
                                                       .kv_heads = 1,
                                                       .head_dim = 64,
                                                       .feed_forward = 256,
                                                       .vocabulary = 512,
                                                       .context_tokens = 4096});
  const StepInputs inputs{.program = program,
                          .pool = pool_,
                          .tokens = batch.tokens,
                          .rotation = batch.rotation,
                          .block = batch.block,
                          .offset = batch.offset,
                          .logit_rows = batch.logit_rows,
                          .segments = batch.segments,
                          .row_segments = batch.row_segments,
                          .entry_segment = batch.entry_segment,
                          .delta = batch.delta,
                          .visible_tokens = batch.visible_tokens};
  const std::vector<int> other = {0};
  const absl::Status status = backend_->RunStep(inputs, [&] {
    return backend_->RmsNorm({.input = {reinterpret_cast<float*>(memory_->data()), 1, 64},
                              .weight = {reinterpret_cast<float*>(memory_->data()), 64},
                              .epsilon = 1e-5f,
                              .rows = other,
                              .output = {reinterpret_cast<BFloat16*>(memory_->data()), 1, 64}});
  });
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("not the step's"));
  StepInputs foreign = inputs;
  foreign.program = StepProgram(77);
  EXPECT_TRUE(absl::IsInvalidArgument(backend_->RunStep(foreign, [] { return absl::OkStatus(); })));
}

// No operation is asked for in a repeated step, so none can refuse its argument.
TEST_F(CudaStepsTest, AWildValueIsRefusedInARepeatedStepToo) {
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(Forward(DecodeStep(2, 5), false).ok());
  }
  std::vector<BlockId> wild = BlocksOf(0);
  wild[2] = BlockId(kPoolBlocks);
  const auto refused = [&](const std::string& field, const auto& spoil) {
    ForwardBatch batch = DecodeStep(2, 5);
    spoil(batch);
    const absl::Status status = Forward(batch, false).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << field << ": " << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(field));
  };
  refused("segments.blocks", [&](ForwardBatch& batch) { batch.segments[1].blocks = wild; });
  refused("tokens[1] is 512", [](ForwardBatch& batch) { batch.tokens[1] = TokenId(512); });
  refused("block[0]", [](ForwardBatch& batch) { batch.block[0] = BlockId(kPoolBlocks); });
  refused("offset[1]", [](ForwardBatch& batch) { batch.offset[1] = kBlockTokens; });
  refused("rotation[0]", [](ForwardBatch& batch) { batch.rotation[0] = -1; });
  refused("|delta|[0]", [](ForwardBatch& batch) { batch.delta[0] = 4096; });
  refused("visible_tokens[1]", [](ForwardBatch& batch) { batch.visible_tokens[1] += 1; });
  refused("logit_rows[0]", [](ForwardBatch& batch) { batch.logit_rows[0] = 4; });
}

TEST_F(CudaStepsTest, ALostDeviceShowsInThisStepOrTheNextAndStaysLost) {
  device_->FailNextWork("an illegal address");
  const auto logits = Forward(DecodeStep(3, 0), false);
  std::vector<SelectedToken> selected(3);
  const std::vector<TokenSelection> rows(3);
  absl::Status status = logits.status();
  if (status.ok()) {
    status = backend_->SelectTokens({.logits = *logits, .rows = rows, .selected = selected});
  }
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("the device is lost"));

  EXPECT_EQ(Forward(DecodeStep(3, 1), false).status(), status);
  EXPECT_EQ(backend_->Synchronize(), status);
}

TEST_F(CudaStepsTest, AHeadDimensionWithoutAKernelIsRefusedBeforeWeightsAreRead) {
  const TinyCheckpoint odd({.seed = 9, .heads = 6, .kv_heads = 2, .head_dim = 32});
  const auto transformer = Transformer::Load(*odd, *backend_, {.rows = 4, .logit_rows = 4});
  EXPECT_TRUE(absl::IsFailedPrecondition(transformer.status())) << transformer.status();
  EXPECT_THAT(std::string(transformer.status().message()),
              testing::AllOf(testing::HasSubstr("32"), testing::HasSubstr("--device cpu")));
}

}  // namespace
}  // namespace baton
