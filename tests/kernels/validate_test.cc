#include "kernels/validate.h"

#include <limits>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "tests/kernels/kernel_test_support.h"

namespace baton {
namespace {

void ExpectRefused(const absl::Status& status, const std::string& op, const std::string& field) {
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << op << " " << field << ": " << status;
  const std::string message(status.message());
  EXPECT_EQ(message.rfind(op + ": ", 0), 0u) << message;
  EXPECT_NE(message.find(field), std::string::npos) << message;
}

// Every argument of this fixture is right; tests spoil one field and expect it to be named.
class ValidateTest : public testing::Test {
 protected:
  ValidateTest() {
    backend_ = *CreateCpuBackend({.isa = "plain"});
    weight_ = *backend_->Pack(6, 4, [](int, int, std::span<float>) { return absl::OkStatus(); });
    rope_ = *backend_->MakeRopeTable(std::vector<double>{1.0, 0.1}, 50);
    const KvLayout layout = backend_->LayoutFor(2, 1, 4);
    memory_ = *backend_->Allocate(3 * layout.block_bytes());
    pool_ = MakeKvPoolView(memory_->data(), 3, layout);
  }

  MatMulArgs MatMul() {
    return {.input = {halves_, 2, 4}, .weight = weight_.get(), .output = {floats_, 2, 6}};
  }
  EmbedTokensArgs Embed() {
    return {.tokens = tokens_, .embedding = weight_.get(), .hidden = {floats_, 2, 4}};
  }
  RmsNormArgs Norm() {
    return {.input = {floats_, 3, 4},
            .weight = {floats_, 4},
            .epsilon = 1e-5f,
            .rows = rows_,
            .output = {halves_, 2, 4}};
  }
  RotateAndWriteKvArgs Write() {
    return {.key = {floats_, 2, 1, 4},
            .value = {floats_, 2, 1, 4},
            .rotation = ints_,
            .rope = rope_.get(),
            .block = blocks_,
            .offset = ints_,
            .pool = pool_,
            .layer = LayerIndex(1)};
  }
  PagedAttentionArgs Attend() {
    return {.query = {floats_, 2, 2, 4},
            .pool = pool_,
            .layer = LayerIndex(1),
            .rope = rope_.get(),
            .segments = segments_,
            .row_segments = row_segments_,
            .entry_segment = entry_segment_,
            .delta = ints_,
            .visible_tokens = visible_tokens_,
            .scale = 0.5f,
            .output = {halves_, 2, 2, 4}};
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<PackedWeight> weight_;  // [6, 4]
  std::unique_ptr<RopeTable> rope_;       // D 4, 50 positions
  std::unique_ptr<DeviceMemory> memory_;
  KvPoolView pool_;  // 3 blocks, 2 layers, G 1, D 4
  float floats_[64] = {};
  BFloat16 halves_[64] = {};
  std::vector<TokenId> tokens_ = {TokenId(0), TokenId(5)};
  std::vector<int> rows_ = {0, 2};
  std::vector<int> ints_ = {3, 4};
  std::vector<BlockId> blocks_ = {BlockId(2), BlockId(0)};
  std::vector<SegmentRef> segments_ = {{.blocks = blocks_, .tokens = 20}};
  std::vector<int> row_segments_ = {0, 1, 2};
  std::vector<int> entry_segment_ = {0, 0};
  std::vector<int> visible_tokens_ = {1, 20};
};

TEST_F(ValidateTest, AcceptsWhatIsRight) {
  EXPECT_TRUE(backend_->RotateAndWriteKv(Write()).ok());
  for (const absl::Status& status :
       {Validate(MatMul()), Validate(Embed()), Validate(Norm()), Validate(Attend())}) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_F(ValidateTest, AcceptsIdleRows) {
  tokens_[0] = kIdleToken;
  rows_[1] = kIdleRow;
  blocks_[1] = kIdleBlock;
  for (const absl::Status& status : {Validate(Embed()), Validate(Norm()), Validate(Write())}) {
    EXPECT_TRUE(status.ok()) << status;
  }
  blocks_[1] = BlockId(0);
  row_segments_ = {0, 0, 2};
  EXPECT_TRUE(Validate(Attend()).ok()) << Validate(Attend());
}

TEST_F(ValidateTest, NamesTheFieldOfStepLimits) {
  const auto prepare = [this](const StepLimits& limits) {
    return backend_->PrepareSteps(limits).status();
  };
  const StepLimits good{.rows = 4,
                        .logit_rows = 2,
                        .heads = 4,
                        .kv_heads = 2,
                        .head_dim = 8,
                        .feed_forward = 16,
                        .vocabulary = 32,
                        .context_tokens = 64};
  EXPECT_TRUE(prepare(good).ok());
  EXPECT_NE(*backend_->PrepareSteps(good), *backend_->PrepareSteps(good));
  StepLimits limits = good;
  limits.kv_heads = 3;
  ExpectRefused(prepare(limits), "prepare_steps", "4 heads over 3");
  limits = good;
  limits.rows = 0;
  ExpectRefused(prepare(limits), "prepare_steps", "a limit");
}

TEST_F(ValidateTest, NamesTheFieldOfAGatedMatMul) {
  const MatMulArgs product = MatMul();  // the weight is [6, 4]
  const GatedMatMulArgs good = {
      .input = product.input, .weight = product.weight, .output = {halves_, 2, 3}};
  EXPECT_TRUE(backend_->GatedMatMul(good).ok());
  GatedMatMulArgs args = good;
  args.output = {halves_, 2, 6};
  ExpectRefused(backend_->GatedMatMul(args), "gated_mat_mul", "output is [2, 6], needs [2, 3]");
  args = good;
  args.weight = nullptr;
  ExpectRefused(backend_->GatedMatMul(args), "gated_mat_mul", "weight");
}

TEST_F(ValidateTest, NamesTheFieldOfAMatMul) {
  MatMulArgs args = MatMul();
  args.weight = nullptr;
  ExpectRefused(backend_->MatMul(args), "mat_mul", "weight");
  args = MatMul();
  args.input = {halves_, 2, 6};
  ExpectRefused(backend_->MatMul(args), "mat_mul", "input is [2, 6], needs [2, 4]");
  args = MatMul();
  args.output = {floats_, 3, 6};
  ExpectRefused(backend_->MatMul(args), "mat_mul", "output is [3, 6], needs [2, 6]");
  args = MatMul();
  args.output = TensorView<float>(floats_, 2, 6).WithRowStride(5);
  ExpectRefused(backend_->MatMul(args), "mat_mul", "output");
  args = MatMul();
  args.output = TensorView<float>(static_cast<float*>(nullptr), 2, 6);
  ExpectRefused(backend_->MatMul(args), "mat_mul", "output has no memory");
}

TEST_F(ValidateTest, NamesTheFieldOfAnEmbeddingAndANorm) {
  EmbedTokensArgs embed = Embed();
  tokens_[1] = TokenId(6);
  ExpectRefused(backend_->EmbedTokens(embed), "embed_tokens", "tokens[1] is 6");
  embed.hidden = {floats_, 2, 5};
  ExpectRefused(backend_->EmbedTokens(embed), "embed_tokens", "hidden");

  RmsNormArgs norm = Norm();
  rows_[0] = 3;
  ExpectRefused(backend_->RmsNorm(norm), "rms_norm", "rows[0] is 3");
  rows_[0] = -2;
  ExpectRefused(backend_->RmsNorm(norm), "rms_norm", "rows[0] is -2");
  norm = Norm();
  norm.rows = {};
  ExpectRefused(backend_->RmsNorm(norm), "rms_norm", "output is [2, 4], needs [3, 4]");
  norm = Norm();
  norm.weight = {floats_, 5};
  ExpectRefused(backend_->RmsNorm(norm), "rms_norm", "input");
  norm = Norm();
  norm.epsilon = std::numeric_limits<float>::quiet_NaN();
  rows_[0] = 0;
  ExpectRefused(backend_->RmsNorm(norm), "rms_norm", "epsilon");
}

TEST_F(ValidateTest, NamesTheFieldOfAWrite) {
  RotateAndWriteKvArgs args = Write();
  blocks_[0] = BlockId(3);
  ExpectRefused(backend_->RotateAndWriteKv(args), "rotate_and_write_kv", "block[0] is 3");
  blocks_[0] = BlockId(2);
  ints_[1] = 16;
  ExpectRefused(backend_->RotateAndWriteKv(args), "rotate_and_write_kv", "offset[1] is 16");
  ints_[1] = 50;
  ExpectRefused(backend_->RotateAndWriteKv(args), "rotate_and_write_kv", "rotation[1] is 50");
  ints_[1] = 4;
  args.layer = LayerIndex(2);
  ExpectRefused(backend_->RotateAndWriteKv(args), "rotate_and_write_kv", "layer");
  args = Write();
  args.value = {floats_, 2, 1, 6};
  ExpectRefused(backend_->RotateAndWriteKv(args), "rotate_and_write_kv", "value");
  args = Write();
  args.pool.layer_bytes += 64;
  ExpectRefused(backend_->RotateAndWriteKv(args), "rotate_and_write_kv", "pool");
  args = Write();
  args.pool.data += 4;
  ExpectRefused(backend_->RotateAndWriteKv(args), "rotate_and_write_kv", "pool.data");
  args = Write();
  const std::unique_ptr<RopeTable> other = *backend_->MakeRopeTable(std::vector<double>{1.0}, 50);
  args.rope = other.get();
  ExpectRefused(backend_->RotateAndWriteKv(args), "rotate_and_write_kv", "rope");
}

TEST_F(ValidateTest, NamesTheFieldOfAnAttention) {
  const auto refused = [&](const std::string& field) {
    ExpectRefused(backend_->PagedAttention(Attend()), "paged_attention", field);
  };
  visible_tokens_[1] = 21;
  refused("visible_tokens[1] is 21");
  visible_tokens_[1] = -1;
  refused("visible_tokens[1] is -1");
  visible_tokens_[1] = 0;
  refused("row 1 sees no key");
  visible_tokens_[1] = 20;
  ints_[0] = -50;
  refused("|delta|[0] is 50");
  ints_[0] = 3;
  entry_segment_[0] = 1;
  refused("entry_segment[0] is 1");
  entry_segment_[0] = 0;
  segments_[0].tokens = 33;
  refused("segments[0] has 33 tokens in 2 blocks");
  segments_[0].tokens = 20;
  blocks_[1] = BlockId(7);
  refused("segments.blocks[0] is 7");
  blocks_[1] = BlockId(0);
  row_segments_ = {0, 2, 1};
  refused("row_segments");
  row_segments_ = {0, 3, 2};
  refused("row_segments");
  row_segments_ = {0, 2};
  refused("row_segments has 2 elements, needs 3");
  row_segments_ = {0, 1, 2};
  PagedAttentionArgs args = Attend();
  args.scale = 0;
  ExpectRefused(backend_->PagedAttention(args), "paged_attention", "scale");
  args = Attend();
  args.output = {halves_, 2, 1, 8};
  ExpectRefused(backend_->PagedAttention(args), "paged_attention", "output");
}

TEST_F(ValidateTest, NamesTheFieldOfASelection) {
  SelectedToken selected[1];
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto refused = [&](const TokenSelection& row, const std::string& field) {
    ExpectRefused(
        backend_->SelectTokens(
            {.logits = {floats_, 1, 8}, .rows = std::span(&row, 1), .selected = selected}),
        "select_tokens", field);
  };
  refused({.temperature = nan}, "temperature");
  refused({.temperature = -1}, "temperature");
  refused({.top_p = 0}, "top_p");
  refused({.top_p = nan}, "top_p");
  refused({.top_k = -1}, "top_k");
  refused({.min_p = 1.5f}, "min_p");
  refused({.repetition_penalty = 0}, "repetition_penalty");
  refused({.frequency_penalty = nan}, "frequency_penalty");
  refused({.presence_penalty = std::numeric_limits<float>::infinity()}, "presence_penalty");
  refused({.prompt_tokens = 1}, "prompt_tokens");
  refused({.logprobs = 9}, "logprobs");
  const std::vector<TokenId> outside = {TokenId(8)};
  refused({.banned = outside}, "banned");
  refused({.presence_penalty = 1, .history = outside}, "history");
  refused({.forced = TokenId(8)}, "forced");
  const std::vector<LogitBias> bias = {{TokenId(1), nan}};
  refused({.logit_bias = bias}, "logit_bias");
}

TEST_F(ValidateTest, RefusesWeightsRopesAndActivationsOfAnImpossibleShape) {
  const RowReader reader = [](int, int, std::span<float>) { return absl::OkStatus(); };
  ExpectRefused(backend_->Pack(4, 3, reader).status(), "pack", "4 rows and 3 columns");
  ExpectRefused(backend_->Pack(0, 4, reader).status(), "pack", "0 rows");
  ExpectRefused(backend_->MakeRopeTable({}, 4).status(), "make_rope_table", "frequency");
  ExpectRefused(backend_->Copy({.bytes = 1}), "copy", "source");
}

TEST_F(ValidateTest, PackPassesOnTheReadersError) {
  const absl::Status status =
      backend_
          ->Pack(40, 4,
                 [](int first, int, std::span<float>) {
                   return first == 0 ? absl::OkStatus() : absl::DataLossError("tensor is short");
                 })
          .status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

TEST(CreateCpuBackend, RefusesWhatItCannotBe) {
  ExpectRefused(CreateCpuBackend({.isa = "avx1024"}).status(), "cpu isa", "avx1024");
  ExpectRefused(CreateCpuBackend({.threads = 0}).status(), "cpu threads", "0");
  ExpectRefused(CreateCpuBackend({.threads = 257}).status(), "cpu threads", "257");
  EXPECT_TRUE(CreateCpuBackend({}).ok());
}

// A weight of some other backend.
class ForeignWeight final : public PackedWeight {
 public:
  int rows() const override { return 6; }
  int columns() const override { return 4; }
  std::size_t bytes() const override { return 0; }
};

TEST_F(ValidateTest, RefusesTheWeightOfAnotherBackend) {
  const ForeignWeight weight;
  MatMulArgs args = MatMul();
  args.weight = &weight;
  ExpectRefused(backend_->MatMul(args), "mat_mul", "another backend");
}

}  // namespace
}  // namespace baton
