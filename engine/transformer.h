#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/strong_id.h"
#include "kernels/ops.h"
#include "model/checkpoint.h"

namespace baton {

// One step's rows, in host memory. Row t is token `tokens[t]`, whose key and value go to slot
// `offset[t]` of `block[t]` and which sees the segments listed for it (PagedAttentionArgs has their
// meaning).
struct ForwardBatch {
  std::vector<TokenId> tokens;          // [T]
  std::vector<int> rotation;            // [T] index inside its segment
  std::vector<BlockId> block;           // [T]
  std::vector<int> offset;              // [T]
  std::vector<SegmentRef> segments;     // block lists are borrowed until Forward returns
  std::vector<int> row_segments = {0};  // [T + 1]
  std::vector<int> entry_segment;       // [entries]
  std::vector<int> delta;               // [entries]
  std::vector<int> visible_tokens;      // [entries]
  std::vector<int> logit_rows;          // [R] rows whose logits are wanted, ascending

  int rows() const { return static_cast<int>(tokens.size()); }
  // Adds a row that sees one segment, of which it is token `position`: every plain sequence.
  void AddRow(TokenId token, int position, int segment);
  // Adds idle rows, each with an idle logit row, until there are `count` rows.
  void PadTo(int count);
};

// The llama forward pass, written once against Backend: RMSNorm, rotary attention with grouped
// heads over paged KV, SwiGLU.
//
// Owns the packed weights and the activations of one step. Borrows the backend, which must outlive
// it.
//
// Not thread-safe: used only by the engine thread.
class Transformer {
 public:
  struct Limits {
    int rows = 0;        // most T of a step
    int logit_rows = 0;  // most R of a step
  };

  // Reads and packs every weight. Errors are the checkpoint's and the backend's.
  static absl::StatusOr<std::unique_ptr<Transformer>> Load(const Checkpoint& checkpoint,
                                                           Backend& backend,
                                                           Limits limits);

  // Whom a step tells, and asks, on its way; each may be empty.
  struct StepHooks {
    std::function<void(LayerIndex)> on_layer;  // the layer's keys and values are in the pool
    std::function<bool()> is_abandoned;        // before each layer: nobody wants the rest
  };

  // Runs a step. Returns the logits [R, V], valid until the next call; CANCELLED when it was
  // abandoned.
  absl::StatusOr<TensorView<const float>> Forward(const ForwardBatch& batch,
                                                  const KvPoolView& pool,
                                                  const StepHooks& hooks);

  std::size_t weight_bytes() const;

 private:
  struct Layer {
    std::unique_ptr<DeviceMemory> attention_norm;     // [E]
    std::unique_ptr<PackedWeight> query_key_value;    // [(H + 2G) * D, E]
    std::unique_ptr<PackedWeight> attention_output;   // [E, H * D]
    std::unique_ptr<DeviceMemory> feed_forward_norm;  // [E]
    std::unique_ptr<PackedWeight> gate_up;            // [2F, E]
    std::unique_ptr<PackedWeight> down;               // [E, F]
  };

  Transformer(const ModelConfig& config, Backend& backend, Limits limits)
      : config_(config), backend_(backend), limits_(limits) {}

  absl::Status PrepareSteps();
  absl::Status LoadWeights(const Checkpoint& checkpoint);
  absl::Status AllocateActivations();
  StepInputs InputsOf(const ForwardBatch& batch,
                      const KvPoolView& pool,
                      const StepHooks& hooks) const;
  absl::Status RunOperations(const ForwardBatch& batch,
                             const KvPoolView& pool,
                             const StepHooks& hooks);
  absl::Status RunHead(const ForwardBatch& batch);
  absl::Status RunAttention(const Layer& layer,
                            LayerIndex index,
                            const ForwardBatch& batch,
                            const KvPoolView& pool);
  absl::Status RunFeedForward(const Layer& layer, int rows);

  template <typename T>
  TensorView<T> View(const std::unique_ptr<DeviceMemory>& memory, int rows, int columns) const {
    return {reinterpret_cast<T*>(memory->data()), rows, columns};
  }

  const ModelConfig config_;
  Backend& backend_;
  const Limits limits_;
  StepProgram program_;

  std::unique_ptr<RopeTable> rope_;
  std::unique_ptr<PackedWeight> embedding_;    // [V, E]; also the head of a tied model
  std::unique_ptr<PackedWeight> head_;         // [V, E]; null when tied
  std::unique_ptr<DeviceMemory> output_norm_;  // [E]
  std::vector<Layer> layers_;

  std::unique_ptr<DeviceMemory> hidden_;     // [T, E] float
  std::unique_ptr<DeviceMemory> normed_;     // [T, E] bf16
  std::unique_ptr<DeviceMemory> projected_;  // [T, (H + 2G) * D] float
  std::unique_ptr<DeviceMemory> attended_;   // [T, H * D] bf16
  std::unique_ptr<DeviceMemory> activated_;  // [T, F] bf16
  std::unique_ptr<DeviceMemory> logits_;     // [R, V] float
};

}  // namespace baton
