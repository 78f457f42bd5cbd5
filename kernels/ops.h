#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv_layout.h"
#include "common/strong_id.h"
#include "kernels/bfloat16.h"
#include "kernels/copy_direction.h"
#include "kernels/select_tokens.h"
#include "kernels/tensor_view.h"

// The operations of a transformer forward pass. One argument struct each, every field with its
// shape:
//
//   T tokens (rows) of this batch    H query heads              E model width
//   D head dimension                 G key/value heads          F feed-forward width
//   N, K rows and columns of a weight                           V vocabulary
//
// A TensorView points into memory of the backend, a std::span into host memory. Neither is owned;
// both must live until the call returns (spans) or until the next Synchronize (views).
//
// Every operation checks its shapes first (kernels/validate.h) and gives INVALID_ARGUMENT naming
// operation and field, with nothing written. Outputs must not overlap inputs.
namespace baton {

// A weight matrix in the form that one backend computes with. Opaque: made by a backend's Pack for
// itself; another backend refuses it. Immutable.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  virtual int rows() const = 0;           // N
  virtual int columns() const = 0;        // K
  virtual std::size_t bytes() const = 0;  // memory held
  // Of these, what a product with one row reads.
  virtual std::size_t bytes_of_few_rows() const { return bytes(); }
};

// Cosines and sines of the rotary embedding, in the memory of one backend. Opaque like
// PackedWeight. Immutable.
class RopeTable {
 public:
  virtual ~RopeTable() = default;
  virtual int head_dim() const = 0;   // D
  virtual int positions() const = 0;  // angles known for rotations in (-positions, positions)
};

// Memory of a backend, zeroed and resident from the start. Owns it.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual std::byte* data() const = 0;  // aligned to 256 bytes, a large one to 4 KiB
  virtual std::size_t size_bytes() const = 0;
};

// Gives rows [first_row, first_row + count) of a weight as floats, `out` is [count, K].
using RowReader = std::function<absl::Status(int first_row, int count, std::span<float> out)>;

// The KV pool: `blocks` blocks of `layout.layers` layers of `layout.layer_bytes` bytes, one after
// the other.
struct KvPoolView {
  std::byte* data = nullptr;  // not owned; aligned to 64 bytes
  int blocks = 0;
  int layers = 0;
  int kv_heads = 0;             // G
  int head_dim = 0;             // D
  std::size_t layer_bytes = 0;  // bytes of one layer of one block
};
KvPoolView MakeKvPoolView(std::byte* data, int blocks, const KvLayout& layout);

// An idle row only fills a batch up to a size that a backend likes (Backend::PaddedRows). Its token
// is kIdleToken, its block kIdleBlock, it has no entries in attention and is kIdleRow where rows
// are taken; its outputs are zeros or whatever follows from zeros, and nothing is written for it
// into the pool.
inline constexpr TokenId kIdleToken{0xffffffff};
inline constexpr BlockId kIdleBlock{0xffffffff};
inline constexpr int kIdleRow = -1;

struct EmbedTokensArgs {
  std::span<const TokenId> tokens;          // [T]; kIdleToken: a row of zeros
  const PackedWeight* embedding = nullptr;  // [V, E]; may be the output head's own weight
  TensorView<float> hidden;                 // [T, E]
};

// output = input / sqrt(mean(input^2) + epsilon) * weight
struct RmsNormArgs {
  TensorView<const float> input;   // [T', E]
  TensorView<const float> weight;  // [E]
  float epsilon = 0;
  std::span<const int> rows;    // [T] rows of input to take, kIdleRow: zeros; empty: all, T = T'
  TensorView<BFloat16> output;  // [T, E]
};

// output (+)= input * weight^T
struct MatMulArgs {
  TensorView<const BFloat16> input;      // [T, K]
  const PackedWeight* weight = nullptr;  // [N, K]
  TensorView<float> output;              // [T, N]
  bool accumulate = false;               // add to what output holds: the residual connection
};

// output = silu(gate) * up, with gate and up the two halves of input * weight^T and
// silu(x) = x / (1 + exp(-x))
struct GatedMatMulArgs {
  TensorView<const BFloat16> input;      // [T, K]
  const PackedWeight* weight = nullptr;  // [2F, K], gate then up
  TensorView<BFloat16> output;           // [T, F]
};

// Rotates each key by its index in its segment and writes key and value into their slot of the
// pool. Pairs (i, i + D/2) turn together.
struct RotateAndWriteKvArgs {
  TensorView<const float> key;    // [T, G, D], not rotated
  TensorView<const float> value;  // [T, G, D]
  std::span<const int> rotation;  // [T] index of the token inside its segment
  const RopeTable* rope = nullptr;
  std::span<const BlockId> block;  // [T]; kIdleBlock: nothing is written
  std::span<const int> offset;     // [T] slot inside the block, [0, kBlockTokens)
  KvPoolView pool;
  LayerIndex layer;
};

// A list of blocks that hold consecutive tokens; the last one may be part-filled. Slots beyond
// `tokens` may hold anything, NaN included.
struct SegmentRef {
  std::span<const BlockId> blocks;
  int tokens = 0;
};

// The context of row t is entries [row_segments[t], row_segments[t + 1]), in this order. With R(a)
// the rotation by a positions, the score of key j of an entry's segment is scale * (R(delta) q) .
// (R(j) k_j); one softmax runs over the visible keys of all entries. A row sees at least one key; a
// row without entries is idle and gives zeros.
//
// Neighbouring rows with the same list of segments (a prefill chunk) are computed together where
// that is faster. On a CPU the result of a row does not depend on it; see Backend.
struct PagedAttentionArgs {
  TensorView<const float> query;  // [T, H, D], not rotated; H is a multiple of G
  KvPoolView pool;
  LayerIndex layer;
  const RopeTable* rope = nullptr;
  std::span<const SegmentRef> segments;
  std::span<const int> row_segments;   // [T + 1], starts with 0
  std::span<const int> entry_segment;  // [entries] index into segments
  std::span<const int>
      delta;  // [entries] rotation of the query against this segment; may be negative
  std::span<const int>
      visible_tokens;           // [entries] keys of the segment that the row sees, its own included
  float scale = 0;              // 1 / sqrt(D)
  TensorView<BFloat16> output;  // [T, H, D]
};

struct CopyArgs {
  std::byte* destination = nullptr;
  const std::byte* source = nullptr;
  std::size_t bytes = 0;
  CopyDirection direction = CopyDirection::kDeviceToDevice;
};

// The shapes of a model's steps, and the most that one step holds.
struct StepLimits {
  int rows = 0;            // T
  int logit_rows = 0;      // R
  int heads = 0;           // H
  int kv_heads = 0;        // G
  int head_dim = 0;        // D
  int feed_forward = 0;    // F
  int vocabulary = 0;      // V
  int context_tokens = 0;  // rotations are below this
};

// What PrepareSteps made ready; no two of a process are equal.
using StepProgram = StrongId<struct StepProgramTag>;

// All lists that the operations of one step are given, in host memory. They must live until RunStep
// returns. Meaning: the argument structs above.
struct StepInputs {
  StepProgram program;
  KvPoolView pool;
  std::span<const TokenId> tokens;  // [T]
  std::span<const int> rotation;    // [T]
  std::span<const BlockId> block;   // [T]
  std::span<const int> offset;      // [T]
  std::span<const int> logit_rows;  // [R]
  std::span<const SegmentRef> segments;
  std::span<const int> row_segments;    // [T + 1]
  std::span<const int> entry_segment;   // [entries]
  std::span<const int> delta;           // [entries]
  std::span<const int> visible_tokens;  // [entries]
  // Every step of this program and pool with as many rows and logit rows asks for the same
  // operations on the same memory, and nobody looks at what one of them did before all are done: a
  // backend may note the operations once and repeat them.
  bool repeatable = false;
};

struct MemoryBudget {
  std::size_t free_bytes = 0;       // what Allocate could still give, near enough
  std::size_t workspace_bytes = 0;  // that the backend holds for itself: scratch, staging
  // For a KV pool whose size nobody named, once weights and activations are there.
  std::size_t default_pool_bytes = 0;
};

// One way to compute: the forward pass is written once against this class.
//
// On the CPU, with one value of arithmetic(), the result of a row is the same bit for bit whatever
// else is in the batch, however a prompt is cut into chunks, and for any number of threads.
//
// On CUDA a row is the same bit for bit whenever the same kernels compute it, idle rows and
// repeated steps included. Two things choose kernels. Attention: a row whose neighbour has the same
// list of segments goes to the prefill kernel, any other to the decode kernel; so a decoding
// sequence's row does not depend on its batch, but a prompt's row may come out differently by
// rounding when it is alone in its chunk. Matrix products: cuBLASLt's algorithm is chosen by the
// number of rows, rounded up to a power of two; so a row may differ by rounding between batches of
// different size. (Under emulation products are the same in every batch.)
//
// Not thread-safe: used only by the engine thread. Allocate and Memory alone may run beside other
// methods.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;  // "cpu"
  virtual std::string_view arithmetic()
      const = 0;  // code path that rounds in its own way, "cpu-avx2"

  virtual KvLayout LayoutFor(int layers, int kv_heads, int head_dim) const = 0;

  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(std::size_t bytes) = 0;
  virtual absl::StatusOr<MemoryBudget> Memory() = 0;

  // Reads every row once, in order, and rounds it to the backend's weight type. K must be even.
  virtual absl::StatusOr<std::unique_ptr<PackedWeight>> Pack(int rows,
                                                             int columns,
                                                             const RowReader& reader) = 0;

  // `frequencies` is [D/2], radians per position; see RopeFrequencies in kernels/rope.h.
  virtual absl::StatusOr<std::unique_ptr<RopeTable>> MakeRopeTable(
      std::span<const double> frequencies, int positions) = 0;

  // Takes the scratch that steps within `limits` need. FAILED_PRECONDITION for a shape that the
  // backend cannot compute.
  virtual absl::StatusOr<StepProgram> PrepareSteps(const StepLimits& limits) = 0;
  // The rows, idle ones included, that a step with these inputs is best given; logit rows grow by
  // as many. At least the rows it has, and within the limits of its program.
  virtual int PaddedRows(const StepInputs& inputs) = 0;
  // Runs the operations of one step: `operations` asks for them. Lists in their arguments that are
  // lists of `inputs` (the same memory) reach the device once for all of them. Gives the first
  // error.
  virtual absl::Status RunStep(const StepInputs& inputs,
                               absl::FunctionRef<absl::Status()> operations) = 0;

  virtual absl::Status EmbedTokens(const EmbedTokensArgs& args) = 0;
  virtual absl::Status RmsNorm(const RmsNormArgs& args) = 0;
  virtual absl::Status MatMul(const MatMulArgs& args) = 0;
  virtual absl::Status GatedMatMul(const GatedMatMulArgs& args) = 0;
  virtual absl::Status RotateAndWriteKv(const RotateAndWriteKvArgs& args) = 0;
  virtual absl::Status PagedAttention(const PagedAttentionArgs& args) = 0;
  virtual absl::Status SelectTokens(const SelectTokensArgs& args) = 0;  // waits for the device

  virtual absl::Status Copy(const CopyArgs& args) = 0;
  virtual absl::Status Synchronize() = 0;  // waits until everything asked for is done
};

}  // namespace baton
