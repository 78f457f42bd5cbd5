#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/device_tensors.h"
#include "kernels/cuda/step_runner.h"
#include "kernels/cuda/token_choice.h"
#include "kernels/validate.h"

namespace baton::cuda {
namespace {

constexpr Element kElement = Element::kBFloat16;
constexpr std::size_t kElementBytes = sizeof(BFloat16);

// What a pool of no named size leaves free: for graphs, for the libraries, and for the driver,
// which take memory as they go.
constexpr std::size_t kLeastReserveBytes = std::size_t{64} << 20;
constexpr std::size_t kMostReserveBytes = std::size_t{1} << 30;

// Rows times splits of one launch of decode attention: bounds its scratch.
constexpr int kPartialsAtOnce = 1024;

std::size_t Size(int count) {
  return static_cast<std::size_t>(count);
}

bool IsHeadDimOfAKernel(int head_dim) {
  return head_dim == 64 || head_dim == 128;
}

// Most rows of a tile of prefill attention; 0: all rows go one by one.
int TileRows(int heads, int kv_heads) {
  return kTileRows / (heads / kv_heads);
}

// Not thread-safe: used only by the engine thread. Allocate and Memory may run beside it.
class CudaBackend final : public Backend {
 public:
  static absl::StatusOr<std::unique_ptr<Backend>> Create(std::unique_ptr<Device> device);

  std::string_view name() const override { return device_->info().kind; }
  std::string_view arithmetic() const override { return arithmetic_; }

  KvLayout LayoutFor(int layers, int kv_heads, int head_dim) const override {
    return {.layers = layers,
            .kv_heads = kv_heads,
            .head_dim = head_dim,
            .element_type = "bf16",
            .layout_id = "cuda-token-major-v1",
            .layer_bytes = LayerBytes(kv_heads, head_dim)};
  }

  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(std::size_t bytes) override;
  absl::StatusOr<MemoryBudget> Memory() override;

  absl::StatusOr<std::unique_ptr<PackedWeight>> Pack(int rows,
                                                     int columns,
                                                     const RowReader& reader) override {
    RETURN_IF_ERROR(ValidateWeightShape(rows, columns));
    return CudaPackedWeight::Create(*device_, *ring_, rows, columns, reader);
  }
  absl::StatusOr<std::unique_ptr<RopeTable>> MakeRopeTable(std::span<const double> frequencies,
                                                           int positions) override {
    RETURN_IF_ERROR(ValidateRope(frequencies, positions));
    return CudaRopeTable::Create(*device_, *ring_, frequencies, positions);
  }

  absl::StatusOr<StepProgram> PrepareSteps(const StepLimits& limits) override;
  int PaddedRows(const StepInputs& inputs) override;
  absl::Status RunStep(const StepInputs& inputs,
                       absl::FunctionRef<absl::Status()> operations) override;

  absl::Status EmbedTokens(const EmbedTokensArgs& args) override;
  absl::Status RmsNorm(const RmsNormArgs& args) override;
  absl::Status MatMul(const MatMulArgs& args) override;
  absl::Status GatedMatMul(const GatedMatMulArgs& args) override;
  absl::Status RotateAndWriteKv(const RotateAndWriteKvArgs& args) override;
  absl::Status PagedAttention(const PagedAttentionArgs& args) override;
  absl::Status SelectTokens(const SelectTokensArgs& args) override {
    RETURN_IF_ERROR(Validate(args));
    return token_choice_.Select(args);
  }

  absl::Status Copy(const CopyArgs& args) override;
  absl::Status Synchronize() override { return stream_.Synchronize(); }

 private:
  CudaBackend(std::unique_ptr<Device> device, Stream stream)
      : device_(std::move(device)),
        stream_(std::move(stream)),
        runner_(*device_, stream_),
        token_choice_(*device_, stream_) {}

  static std::size_t LayerBytes(int kv_heads, int head_dim) {
    return 2 * Size(kv_heads) * Size(kBlockTokens) * Size(head_dim) * kElementBytes;
  }

  // After buffers may have grown: Memory answers on any thread.
  void NoteWorkspace();
  // Scratch of at least so many floats.
  absl::Status Ensure(DeviceBuffer<float>& scratch, std::size_t floats);
  absl::Status Launched(LaunchCode code, const char* what) const {
    return device_->ToStatus(code, what);
  }
  absl::StatusOr<const CudaPackedWeight*> OwnWeight(const char* op,
                                                    const PackedWeight& weight) const;
  absl::StatusOr<const CudaRopeTable*> OwnRope(const char* op, const RopeTable& rope) const;
  absl::StatusOr<KvPool> PoolOf(const char* op, const KvPoolView& pool, LayerIndex layer) const;
  absl::Status Multiply(const TensorView<const BFloat16>& input,
                        const CudaPackedWeight& weight,
                        const TensorView<float>& output,
                        bool accumulate);
  absl::Status Attend(const AttentionParams& attention, const DeviceLists& lists);

  // The first to come and the last to go.
  const std::unique_ptr<Device> device_;
  const Stream stream_;
  std::string arithmetic_;
  std::unique_ptr<UploadRing> ring_;
  std::unique_ptr<Gemm> gemm_;
  StepRunner runner_;
  TokenChoice token_choice_;
  DeviceBuffer<float> gate_up_;   // [T, 2F]
  DeviceBuffer<float> partials_;  // of decode attention
  std::map<StepProgram, StepLimits> programs_;
  std::atomic<std::size_t> workspace_bytes_{0};
};

absl::StatusOr<std::unique_ptr<Backend>> CudaBackend::Create(std::unique_ptr<Device> device) {
  ASSIGN_OR_RETURN(Stream stream, Stream::Create(*device));
  std::unique_ptr<CudaBackend> backend(new CudaBackend(std::move(device), std::move(stream)));
  const DeviceInfo& info = backend->device_->info();
  backend->arithmetic_ =
      info.kind == "emulated" ? "cuda-emulated" : absl::StrCat("cuda-sm", info.compute_capability);
  ASSIGN_OR_RETURN(UploadRing ring, UploadRing::Create(*backend->device_, backend->stream_));
  backend->ring_ = std::make_unique<UploadRing>(std::move(ring));
  ASSIGN_OR_RETURN(backend->gemm_, backend->device_->CreateGemm());
  backend->NoteWorkspace();
  return backend;
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> CudaBackend::Allocate(std::size_t bytes) {
  ASSIGN_OR_RETURN(DeviceBuffer<std::byte> memory,
                   DeviceBuffer<std::byte>::Create(*device_, std::max<std::size_t>(bytes, 1)));
  // A stream of its own: several threads may be here.
  ASSIGN_OR_RETURN(const Stream stream, Stream::Create(*device_));
  RETURN_IF_ERROR(device_->Fill(memory.data(), 0, memory.size_bytes(), stream.get()));
  RETURN_IF_ERROR(stream.Synchronize());
  return std::make_unique<CudaMemory>(std::move(memory));
}

absl::StatusOr<MemoryBudget> CudaBackend::Memory() {
  ASSIGN_OR_RETURN(const std::size_t free, device_->FreeBytes());
  const std::size_t reserve =
      std::clamp(device_->info().memory_bytes / 32, kLeastReserveBytes, kMostReserveBytes);
  return MemoryBudget{.free_bytes = free,
                      .workspace_bytes = workspace_bytes_.load(),
                      .default_pool_bytes = free > reserve ? free - reserve : 0};
}

void CudaBackend::NoteWorkspace() {
  workspace_bytes_.store(gemm_->workspace_bytes() + gate_up_.size_bytes() + partials_.size_bytes() +
                         token_choice_.bytes() + runner_.bytes());
}

absl::Status CudaBackend::Ensure(DeviceBuffer<float>& scratch, std::size_t floats) {
  if (floats <= scratch.size()) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(runner_.DropGraphs());
  RETURN_IF_ERROR(stream_.Synchronize());
  scratch = DeviceBuffer<float>();
  ASSIGN_OR_RETURN(scratch, DeviceBuffer<float>::Create(*device_, floats));
  return absl::OkStatus();
}

absl::StatusOr<StepProgram> CudaBackend::PrepareSteps(const StepLimits& limits) {
  RETURN_IF_ERROR(Validate(limits));
  if (!IsHeadDimOfAKernel(limits.head_dim)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model has heads of dimension ", limits.head_dim, ": attention on ",
                     std::string(name()), " is for 64 and 128; use --device cpu"));
  }
  const auto rows = Size(limits.rows);
  RETURN_IF_ERROR(Ensure(gate_up_, rows * 2 * Size(limits.feed_forward)));
  RETURN_IF_ERROR(
      Ensure(partials_, DecodeScratchFloats(kPartialsAtOnce, limits.heads, limits.head_dim, 1)));
  // Lists of one entry a row, and as many blocks as a few thousand tokens of each row need; longer
  // contexts make the buffer grow.
  constexpr std::size_t kIntsOfRow = 16;
  constexpr std::size_t kBlocksOfRow = 256;
  RETURN_IF_ERROR(runner_.Reserve(rows * kIntsOfRow + Size(limits.logit_rows) * kBlocksOfRow + 64));
  RETURN_IF_ERROR(token_choice_.Reserve(limits.logit_rows, limits.vocabulary));
  NoteWorkspace();
  const StepProgram program(static_cast<std::uint32_t>(programs_.size()) + 1);
  programs_.emplace(program, limits);
  return program;
}

int CudaBackend::PaddedRows(const StepInputs& inputs) {
  const auto found = programs_.find(inputs.program);
  if (found == programs_.end() || !Validate(inputs).ok()) {
    return static_cast<int>(inputs.tokens.size());  // RunStep refuses it
  }
  const StepLimits& limits = found->second;
  return StepRunner::PaddedRows(inputs, TileRows(limits.heads, limits.kv_heads),
                                std::min(limits.rows, limits.logit_rows));
}

absl::Status CudaBackend::RunStep(const StepInputs& inputs,
                                  absl::FunctionRef<absl::Status()> operations) {
  RETURN_IF_ERROR(device_->LastError());
  RETURN_IF_ERROR(Validate(inputs));
  const auto found = programs_.find(inputs.program);
  if (found == programs_.end()) {
    return absl::InvalidArgumentError("run_step: the program is not of this backend");
  }
  const StepLimits& limits = found->second;
  RETURN_IF_ERROR(ValidateValues(inputs, limits));
  const absl::Status status =
      runner_.Run(inputs, TileRows(limits.heads, limits.kv_heads), operations);
  NoteWorkspace();
  return status;
}

absl::StatusOr<const CudaPackedWeight*> CudaBackend::OwnWeight(const char* op,
                                                               const PackedWeight& weight) const {
  const auto* own = dynamic_cast<const CudaPackedWeight*>(&weight);
  if (own == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": the weight was packed by another backend"));
  }
  return own;
}

absl::StatusOr<const CudaRopeTable*> CudaBackend::OwnRope(const char* op,
                                                          const RopeTable& rope) const {
  const auto* own = dynamic_cast<const CudaRopeTable*>(&rope);
  if (own == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": the rope table was made by another backend"));
  }
  return own;
}

absl::StatusOr<KvPool> CudaBackend::PoolOf(const char* op,
                                           const KvPoolView& pool,
                                           LayerIndex layer) const {
  if (!IsHeadDimOfAKernel(pool.head_dim)) {
    return absl::FailedPreconditionError(absl::StrCat(op, ": heads of dimension ", pool.head_dim,
                                                      ", the kernels are for 64 and 128"));
  }
  if (pool.layer_bytes != LayerBytes(pool.kv_heads, pool.head_dim)) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": pool does not have this backend's layout"));
  }
  return KvPool{.layer = pool.data + layer.value() * pool.layer_bytes,
                .block_bytes = static_cast<std::int64_t>(pool.layer_bytes) * pool.layers,
                .kv_heads = pool.kv_heads};
}

absl::Status CudaBackend::EmbedTokens(const EmbedTokensArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  ASSIGN_OR_RETURN(const CudaPackedWeight* embedding, OwnWeight("embed_tokens", *args.embedding));
  if (args.tokens.empty()) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const DeviceLists lists,
                   runner_.ListsFor({.tokens = args.tokens}, std::nullopt));
  return Launched(device_->kernels().embed({.tokens = lists.at(StepList::kTokens),
                                            .embedding = embedding->data(),
                                            .element = kElement,
                                            .hidden = args.hidden.data(),
                                            .hidden_stride = args.hidden.row_stride(),
                                            .rows = args.hidden.rows(),
                                            .width = args.hidden.extent(1)},
                                           stream_.get()),
                  "embed_tokens");
}

absl::Status CudaBackend::RmsNorm(const RmsNormArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  if (args.output.rows() == 0) {
    return absl::OkStatus();
  }
  const int* take_rows = nullptr;
  if (!args.rows.empty()) {
    ASSIGN_OR_RETURN(const DeviceLists lists,
                     runner_.ListsFor({.logit_rows = args.rows}, std::nullopt));
    take_rows = lists.at(StepList::kLogitRows);
  }
  return Launched(device_->kernels().rms_norm({.input = args.input.data(),
                                               .input_stride = args.input.row_stride(),
                                               .take_rows = take_rows,
                                               .weight = args.weight.data(),
                                               .epsilon = args.epsilon,
                                               .element = kElement,
                                               .output = args.output.data(),
                                               .output_stride = args.output.row_stride(),
                                               .rows = args.output.rows(),
                                               .width = args.output.extent(1)},
                                              stream_.get()),
                  "rms_norm");
}

absl::Status CudaBackend::Multiply(const TensorView<const BFloat16>& input,
                                   const CudaPackedWeight& weight,
                                   const TensorView<float>& output,
                                   bool accumulate) {
  return gemm_->Run({.input = input.data(),
                     .input_stride = input.row_stride(),
                     .weight = weight.data(),
                     .element = kElement,
                     .output = output.data(),
                     .output_stride = output.row_stride(),
                     .rows = input.rows(),
                     .columns = weight.rows(),
                     .inner = weight.columns(),
                     .accumulate = accumulate},
                    stream_.get());
}

absl::Status CudaBackend::MatMul(const MatMulArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  ASSIGN_OR_RETURN(const CudaPackedWeight* weight, OwnWeight("mat_mul", *args.weight));
  if (args.input.rows() == 0) {
    return absl::OkStatus();
  }
  return Multiply(args.input, *weight, args.output, args.accumulate);
}

absl::Status CudaBackend::GatedMatMul(const GatedMatMulArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  ASSIGN_OR_RETURN(const CudaPackedWeight* weight, OwnWeight("gated_mat_mul", *args.weight));
  const int rows = args.input.rows();
  if (rows == 0) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(Ensure(gate_up_, Size(rows) * Size(weight->rows())));
  const TensorView<float> gate_up(gate_up_.data(), rows, weight->rows());
  RETURN_IF_ERROR(Multiply(args.input, *weight, gate_up, /*accumulate=*/false));
  return Launched(device_->kernels().silu_multiply({.gate_up = gate_up.data(),
                                                    .gate_up_stride = gate_up.row_stride(),
                                                    .element = kElement,
                                                    .output = args.output.data(),
                                                    .output_stride = args.output.row_stride(),
                                                    .rows = rows,
                                                    .width = args.output.extent(1)},
                                                   stream_.get()),
                  "silu_multiply");
}

absl::Status CudaBackend::RotateAndWriteKv(const RotateAndWriteKvArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  ASSIGN_OR_RETURN(const KvPool pool, PoolOf("rotate_and_write_kv", args.pool, args.layer));
  ASSIGN_OR_RETURN(const CudaRopeTable* rope, OwnRope("rotate_and_write_kv", *args.rope));
  if (args.key.rows() == 0) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(
      const DeviceLists lists,
      runner_.ListsFor({.rotation = args.rotation, .block = args.block, .offset = args.offset},
                       std::nullopt));
  return Launched(device_->kernels().rotate_and_write_kv({.key = args.key.data(),
                                                          .key_stride = args.key.row_stride(),
                                                          .value = args.value.data(),
                                                          .value_stride = args.value.row_stride(),
                                                          .rotation = lists.at(StepList::kRotation),
                                                          .block = lists.at(StepList::kBlock),
                                                          .offset = lists.at(StepList::kOffset),
                                                          .rope = rope->data(),
                                                          .pool = pool,
                                                          .head_dim = args.pool.head_dim,
                                                          .element = kElement,
                                                          .rows = args.key.rows()},
                                                         stream_.get()),
                  "rotate_and_write_kv");
}

absl::Status CudaBackend::PagedAttention(const PagedAttentionArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  ASSIGN_OR_RETURN(const KvPool pool, PoolOf("paged_attention", args.pool, args.layer));
  ASSIGN_OR_RETURN(const CudaRopeTable* rope, OwnRope("paged_attention", *args.rope));
  if (args.query.rows() == 0) {
    return absl::OkStatus();
  }
  const int heads = args.query.extent(1);
  ASSIGN_OR_RETURN(const DeviceLists lists,
                   runner_.ListsFor({.segments = args.segments,
                                     .row_segments = args.row_segments,
                                     .entry_segment = args.entry_segment,
                                     .delta = args.delta,
                                     .visible_tokens = args.visible_tokens},
                                    TileRows(heads, args.pool.kv_heads)));
  return Attend({.query = args.query.data(),
                 .query_stride = args.query.row_stride(),
                 .pool = pool,
                 .lists = lists.attention(),
                 .rope = rope->data(),
                 .scale = args.scale,
                 .heads = heads,
                 .head_dim = args.pool.head_dim,
                 .element = kElement,
                 .output = args.output.data(),
                 .output_stride = args.output.row_stride()},
                lists);
}

absl::Status CudaBackend::Attend(const AttentionParams& attention, const DeviceLists& lists) {
  const AttentionPlan& plan = lists.lists->plan();
  if (plan.tiles > 0) {
    RETURN_IF_ERROR(Launched(
        device_->kernels().prefill_attention({.attention = attention,
                                              .tile_first_row = lists.at(StepList::kTileFirstRow),
                                              .tile_rows = lists.at(StepList::kRowsOfTile),
                                              .tiles = plan.tiles},
                                             stream_.get()),
        "prefill_attention"));
  }
  RETURN_IF_ERROR(Ensure(
      partials_, DecodeScratchFloats(kPartialsAtOnce, attention.heads, attention.head_dim, 1)));
  const int rows_at_once = kPartialsAtOnce / lists.room.splits;
  for (int first = 0; first < plan.decode_rows; first += rows_at_once) {
    RETURN_IF_ERROR(Launched(device_->kernels().decode_attention(
                                 {.attention = attention,
                                  .rows = lists.at(StepList::kDecodeRows) + first,
                                  .row_count = std::min(rows_at_once, plan.decode_rows - first),
                                  .splits = lists.room.splits,
                                  .partials = partials_.data()},
                                 stream_.get()),
                             "decode_attention"));
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::Copy(const CopyArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  if (args.bytes == 0) {
    return absl::OkStatus();
  }
  switch (args.direction) {
    case CopyDirection::kHostToDevice:
      return ring_->UploadAll(args.destination, {args.source, args.bytes});
    case CopyDirection::kDeviceToHost:
      return ring_->Download({args.destination, args.bytes}, args.source);
    case CopyDirection::kDeviceToDevice:
      return device_->Copy({.destination = args.destination,
                            .source = args.source,
                            .bytes = args.bytes,
                            .direction = args.direction},
                           stream_.get());
  }
  return absl::InternalError("copy: no direction");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(std::unique_ptr<Device> device) {
  return CudaBackend::Create(std::move(device));
}

}  // namespace baton::cuda
