#include "engine/transformer.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/rope.h"

namespace baton {
namespace {

// Several weights of one layer stacked into one, so that one matrix product serves them all.
struct Part {
  WeightKind kind;
  int rows;
};

absl::StatusOr<std::unique_ptr<PackedWeight>> PackStacked(const Checkpoint& checkpoint,
                                                          Backend& backend,
                                                          LayerIndex layer,
                                                          std::vector<WeightKind> kinds) {
  std::vector<Part> parts;
  int rows = 0;
  for (const WeightKind kind : kinds) {
    parts.push_back({kind, checkpoint.Shape(kind).rows});
    rows += parts.back().rows;
  }
  const int columns = checkpoint.Shape(kinds.front()).columns;
  const RowReader reader = [&](int first_row, int count, std::span<float> out) {
    int part_begin = 0;
    for (const Part& part : parts) {
      const int begin = std::max(first_row, part_begin);
      const int end = std::min(first_row + count, part_begin + part.rows);
      if (begin < end) {
        const auto offset =
            static_cast<std::size_t>(begin - first_row) * static_cast<std::size_t>(columns);
        const auto length =
            static_cast<std::size_t>(end - begin) * static_cast<std::size_t>(columns);
        RETURN_IF_ERROR(checkpoint.ReadRows(part.kind, layer, begin - part_begin, end - begin,
                                            out.subspan(offset, length)));
      }
      part_begin += part.rows;
    }
    return absl::OkStatus();
  };
  return backend.Pack(rows, columns, reader);
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> LoadVector(const Checkpoint& checkpoint,
                                                         Backend& backend,
                                                         WeightKind kind,
                                                         LayerIndex layer) {
  std::vector<float> values(static_cast<std::size_t>(checkpoint.Shape(kind).columns));
  RETURN_IF_ERROR(checkpoint.ReadRows(kind, layer, 0, 1, values));
  const std::size_t bytes = values.size() * sizeof(float);
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory, backend.Allocate(bytes));
  RETURN_IF_ERROR(backend.Copy({.destination = memory->data(),
                                .source = reinterpret_cast<const std::byte*>(values.data()),
                                .bytes = bytes,
                                .direction = CopyDirection::kHostToDevice}));
  RETURN_IF_ERROR(backend.Synchronize());
  return memory;
}

}  // namespace

void ForwardBatch::AddRow(TokenId token, int position, int segment) {
  tokens.push_back(token);
  rotation.push_back(position);
  block.push_back(segments[static_cast<std::size_t>(segment)]
                      .blocks[static_cast<std::size_t>(position / kBlockTokens)]);
  offset.push_back(position % kBlockTokens);
  entry_segment.push_back(segment);
  delta.push_back(position);
  visible_tokens.push_back(position + 1);
  row_segments.push_back(static_cast<int>(entry_segment.size()));
}

void ForwardBatch::PadTo(int count) {
  for (int row = rows(); row < count; ++row) {
    tokens.push_back(kIdleToken);
    rotation.push_back(0);
    block.push_back(kIdleBlock);
    offset.push_back(0);
    row_segments.push_back(row_segments.back());
    logit_rows.push_back(kIdleRow);
  }
}

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Load(const Checkpoint& checkpoint,
                                                               Backend& backend,
                                                               Limits limits) {
  std::unique_ptr<Transformer> transformer(new Transformer(checkpoint.config(), backend, limits));
  // First, since it refuses a model that the backend cannot compute.
  RETURN_IF_ERROR(transformer->PrepareSteps());
  RETURN_IF_ERROR(transformer->LoadWeights(checkpoint));
  RETURN_IF_ERROR(transformer->AllocateActivations());
  return transformer;
}

absl::Status Transformer::PrepareSteps() {
  ASSIGN_OR_RETURN(program_, backend_.PrepareSteps({.rows = limits_.rows,
                                                    .logit_rows = limits_.logit_rows,
                                                    .heads = config_.heads,
                                                    .kv_heads = config_.kv_heads,
                                                    .head_dim = config_.head_dim,
                                                    .feed_forward = config_.feed_forward,
                                                    .vocabulary = config_.vocabulary,
                                                    .context_tokens = config_.context_tokens}));
  return absl::OkStatus();
}

absl::Status Transformer::LoadWeights(const Checkpoint& checkpoint) {
  ASSIGN_OR_RETURN(rope_,
                   backend_.MakeRopeTable(RopeFrequencies(config_.head_dim, config_.rope_base),
                                          config_.context_tokens));
  const LayerIndex none(0);
  ASSIGN_OR_RETURN(embedding_,
                   PackStacked(checkpoint, backend_, none, {WeightKind::kTokenEmbedding}));
  if (!config_.tied_head) {
    ASSIGN_OR_RETURN(head_, PackStacked(checkpoint, backend_, none, {WeightKind::kHead}));
  }
  ASSIGN_OR_RETURN(output_norm_, LoadVector(checkpoint, backend_, WeightKind::kOutputNorm, none));
  for (int i = 0; i < config_.layers; ++i) {
    const LayerIndex index(static_cast<std::uint32_t>(i));
    Layer layer;
    ASSIGN_OR_RETURN(layer.attention_norm,
                     LoadVector(checkpoint, backend_, WeightKind::kAttentionNorm, index));
    ASSIGN_OR_RETURN(layer.query_key_value,
                     PackStacked(checkpoint, backend_, index,
                                 {WeightKind::kQuery, WeightKind::kKey, WeightKind::kValue}));
    ASSIGN_OR_RETURN(layer.attention_output,
                     PackStacked(checkpoint, backend_, index, {WeightKind::kAttentionOutput}));
    ASSIGN_OR_RETURN(layer.feed_forward_norm,
                     LoadVector(checkpoint, backend_, WeightKind::kFeedForwardNorm, index));
    ASSIGN_OR_RETURN(layer.gate_up, PackStacked(checkpoint, backend_, index,
                                                {WeightKind::kGate, WeightKind::kUp}));
    ASSIGN_OR_RETURN(layer.down, PackStacked(checkpoint, backend_, index, {WeightKind::kDown}));
    layers_.push_back(std::move(layer));
  }
  return absl::OkStatus();
}

absl::Status Transformer::AllocateActivations() {
  const auto allocate = [this](std::unique_ptr<DeviceMemory>& memory, int rows, int columns,
                               std::size_t element_bytes) -> absl::Status {
    ASSIGN_OR_RETURN(memory, backend_.Allocate(static_cast<std::size_t>(rows) *
                                               static_cast<std::size_t>(columns) * element_bytes));
    return absl::OkStatus();
  };
  const int rows = limits_.rows;
  const int projected = (config_.heads + 2 * config_.kv_heads) * config_.head_dim;
  const int attended = config_.heads * config_.head_dim;
  RETURN_IF_ERROR(allocate(hidden_, rows, config_.hidden, sizeof(float)));
  RETURN_IF_ERROR(allocate(normed_, rows, config_.hidden, sizeof(BFloat16)));
  RETURN_IF_ERROR(allocate(projected_, rows, projected, sizeof(float)));
  RETURN_IF_ERROR(allocate(attended_, rows, attended, sizeof(BFloat16)));
  RETURN_IF_ERROR(allocate(activated_, rows, config_.feed_forward, sizeof(BFloat16)));
  return allocate(logits_, limits_.logit_rows, config_.vocabulary, sizeof(float));
}

absl::StatusOr<TensorView<const float>> Transformer::Forward(const ForwardBatch& batch,
                                                             const KvPoolView& pool,
                                                             const StepHooks& hooks) {
  const int rows = batch.rows();
  const int logit_rows = static_cast<int>(batch.logit_rows.size());
  if (rows > limits_.rows || logit_rows > limits_.logit_rows) {
    return absl::InvalidArgumentError(absl::StrCat("a step of ", rows, " rows and ", logit_rows,
                                                   " logit rows exceeds ", limits_.rows, " and ",
                                                   limits_.logit_rows));
  }
  const StepInputs inputs = InputsOf(batch, pool, hooks);
  const int padded_rows = backend_.PaddedRows(inputs);
  if (padded_rows == rows) {
    RETURN_IF_ERROR(backend_.RunStep(inputs, [&] { return RunOperations(batch, pool, hooks); }));
  } else {
    ForwardBatch padded = batch;
    padded.PadTo(padded_rows);
    RETURN_IF_ERROR(backend_.RunStep(InputsOf(padded, pool, hooks),
                                     [&] { return RunOperations(padded, pool, hooks); }));
  }
  return TensorView<const float>(View<float>(logits_, logit_rows, config_.vocabulary));
}

StepInputs Transformer::InputsOf(const ForwardBatch& batch,
                                 const KvPoolView& pool,
                                 const StepHooks& hooks) const {
  return {.program = program_,
          .pool = pool,
          .tokens = batch.tokens,
          .rotation = batch.rotation,
          .block = batch.block,
          .offset = batch.offset,
          .logit_rows = batch.logit_rows,
          .segments = batch.segments,
          .row_segments = batch.row_segments,
          .entry_segment = batch.entry_segment,
          .delta = batch.delta,
          .visible_tokens = batch.visible_tokens,
          .repeatable = !hooks.on_layer};
}

absl::Status Transformer::RunOperations(const ForwardBatch& batch,
                                        const KvPoolView& pool,
                                        const StepHooks& hooks) {
  const int rows = batch.rows();
  RETURN_IF_ERROR(backend_.EmbedTokens({.tokens = batch.tokens,
                                        .embedding = embedding_.get(),
                                        .hidden = View<float>(hidden_, rows, config_.hidden)}));
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const LayerIndex index(static_cast<std::uint32_t>(i));
    if (hooks.is_abandoned && hooks.is_abandoned()) {
      return absl::CancelledError("the step was abandoned");
    }
    RETURN_IF_ERROR(RunAttention(layers_[i], index, batch, pool));
    if (hooks.on_layer) {
      RETURN_IF_ERROR(backend_.Synchronize());
      hooks.on_layer(index);
    }
    RETURN_IF_ERROR(RunFeedForward(layers_[i], rows));
  }
  return batch.logit_rows.empty() ? absl::OkStatus() : RunHead(batch);
}

absl::Status Transformer::RunHead(const ForwardBatch& batch) {
  const int logit_rows = static_cast<int>(batch.logit_rows.size());
  const auto normed = View<BFloat16>(normed_, logit_rows, config_.hidden);
  RETURN_IF_ERROR(backend_.RmsNorm(
      {.input = View<float>(hidden_, batch.rows(), config_.hidden),
       .weight = {reinterpret_cast<const float*>(output_norm_->data()), config_.hidden},
       .epsilon = static_cast<float>(config_.rms_epsilon),
       .rows = batch.logit_rows,
       .output = normed}));
  return backend_.MatMul({.input = normed,
                          .weight = head_ != nullptr ? head_.get() : embedding_.get(),
                          .output = View<float>(logits_, logit_rows, config_.vocabulary)});
}

absl::Status Transformer::RunAttention(const Layer& layer,
                                       LayerIndex index,
                                       const ForwardBatch& batch,
                                       const KvPoolView& pool) {
  const int rows = batch.rows();
  const int heads = config_.heads;
  const int kv_heads = config_.kv_heads;
  const int head_dim = config_.head_dim;
  const int width = (heads + 2 * kv_heads) * head_dim;
  const auto hidden = View<float>(hidden_, rows, config_.hidden);
  const auto normed = View<BFloat16>(normed_, rows, config_.hidden);
  const auto projected = View<float>(projected_, rows, width);
  RETURN_IF_ERROR(backend_.RmsNorm(
      {.input = hidden,
       .weight = {reinterpret_cast<const float*>(layer.attention_norm->data()), config_.hidden},
       .epsilon = static_cast<float>(config_.rms_epsilon),
       .output = normed}));
  RETURN_IF_ERROR(backend_.MatMul(
      {.input = normed, .weight = layer.query_key_value.get(), .output = projected}));

  // A row of `projected` is H query heads, then G key heads, then G value heads.
  float* const first = projected.data();
  const auto query = TensorView<float>(first, rows, heads, head_dim).WithRowStride(width);
  const auto key =
      TensorView<float>(first + heads * head_dim, rows, kv_heads, head_dim).WithRowStride(width);
  const auto value =
      TensorView<float>(first + (heads + kv_heads) * head_dim, rows, kv_heads, head_dim)
          .WithRowStride(width);
  RETURN_IF_ERROR(backend_.RotateAndWriteKv({.key = key,
                                             .value = value,
                                             .rotation = batch.rotation,
                                             .rope = rope_.get(),
                                             .block = batch.block,
                                             .offset = batch.offset,
                                             .pool = pool,
                                             .layer = index}));
  const TensorView<BFloat16> attended(reinterpret_cast<BFloat16*>(attended_->data()), rows, heads,
                                      head_dim);
  RETURN_IF_ERROR(backend_.PagedAttention({.query = query,
                                           .pool = pool,
                                           .layer = index,
                                           .rope = rope_.get(),
                                           .segments = batch.segments,
                                           .row_segments = batch.row_segments,
                                           .entry_segment = batch.entry_segment,
                                           .delta = batch.delta,
                                           .visible_tokens = batch.visible_tokens,
                                           .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
                                           .output = attended}));
  return backend_.MatMul({.input = View<BFloat16>(attended_, rows, heads * head_dim),
                          .weight = layer.attention_output.get(),
                          .output = hidden,
                          .accumulate = true});
}

absl::Status Transformer::RunFeedForward(const Layer& layer, int rows) {
  const auto hidden = View<float>(hidden_, rows, config_.hidden);
  const auto normed = View<BFloat16>(normed_, rows, config_.hidden);
  const auto activated = View<BFloat16>(activated_, rows, config_.feed_forward);
  RETURN_IF_ERROR(backend_.RmsNorm(
      {.input = hidden,
       .weight = {reinterpret_cast<const float*>(layer.feed_forward_norm->data()), config_.hidden},
       .epsilon = static_cast<float>(config_.rms_epsilon),
       .output = normed}));
  RETURN_IF_ERROR(
      backend_.GatedMatMul({.input = normed, .weight = layer.gate_up.get(), .output = activated}));
  return backend_.MatMul(
      {.input = activated, .weight = layer.down.get(), .output = hidden, .accumulate = true});
}

std::size_t Transformer::weight_bytes() const {
  std::size_t bytes = embedding_->bytes() + (head_ != nullptr ? head_->bytes() : 0);
  for (const Layer& layer : layers_) {
    bytes += layer.query_key_value->bytes() + layer.attention_output->bytes() +
             layer.gate_up->bytes() + layer.down->bytes();
  }
  return bytes;
}

}  // namespace baton
