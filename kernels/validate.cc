#include "kernels/validate.h"

#include <cmath>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace baton {
namespace {

absl::Status Wrong(const char* op, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(op, ": ", what));
}

std::string ShapeText(int rank, int a, int b, int c) {
  switch (rank) {
    case 0:
      return "not set";
    case 1:
      return absl::StrCat("[", a, "]");
    case 2:
      return absl::StrCat("[", a, ", ", b, "]");
    default:
      return absl::StrCat("[", a, ", ", b, ", ", c, "]");
  }
}

// What a view must look like. Extents beyond the rank are 1.
struct Shape {
  int rank;
  int a;
  int b = 1;
  int c = 1;
};

template <typename T>
absl::Status CheckShape(const char* op,
                        const char* field,
                        const TensorView<T>& view,
                        const Shape& shape) {
  if (view.rank() != shape.rank || view.extent(0) != shape.a || view.extent(1) != shape.b ||
      view.extent(2) != shape.c) {
    return Wrong(
        op, absl::StrCat(field, " is ",
                         ShapeText(view.rank(), view.extent(0), view.extent(1), view.extent(2)),
                         ", needs ", ShapeText(shape.rank, shape.a, shape.b, shape.c)));
  }
  if (view.rows() > 0 && view.data() == nullptr) {
    return Wrong(op, absl::StrCat(field, " has no memory"));
  }
  if (view.rows() > 1 && view.row_stride() < view.row_size()) {
    return Wrong(op, absl::StrCat(field, " has rows that overlap: stride ", view.row_stride()));
  }
  return absl::OkStatus();
}

absl::Status CheckCount(const char* op,
                        const char* field,
                        std::size_t count,
                        std::size_t expected) {
  if (count != expected) {
    return Wrong(op, absl::StrCat(field, " has ", count, " elements, needs ", expected));
  }
  return absl::OkStatus();
}

absl::Status CheckIndex(
    const char* op, const char* field, std::size_t i, std::int64_t value, std::int64_t end) {
  if (value < 0 || value >= end) {
    return Wrong(op,
                 absl::StrCat(field, "[", i, "] is ", value, ", needs to be in [0, ", end, ")"));
  }
  return absl::OkStatus();
}

absl::Status CheckWeight(const char* op, const char* field, const PackedWeight* weight) {
  if (weight == nullptr) {
    return Wrong(op, absl::StrCat(field, " is not set"));
  }
  return absl::OkStatus();
}

absl::Status CheckPool(const char* op, const KvPoolView& pool, LayerIndex layer) {
  if (pool.data == nullptr || pool.blocks <= 0 || pool.layers <= 0 || pool.kv_heads <= 0 ||
      pool.head_dim <= 0 || pool.layer_bytes == 0) {
    return Wrong(op, "pool is not set");
  }
  if (reinterpret_cast<std::uintptr_t>(pool.data) % 64 != 0) {
    return Wrong(op, "pool.data is not aligned to 64 bytes");
  }
  if (static_cast<std::int64_t>(layer.value()) >= pool.layers) {
    return Wrong(op, absl::StrCat("layer is ", layer.value(), ", the pool has ", pool.layers));
  }
  return absl::OkStatus();
}

absl::Status CheckRope(const char* op, const RopeTable* rope, const KvPoolView& pool) {
  if (rope == nullptr) {
    return Wrong(op, "rope is not set");
  }
  if (rope->head_dim() != pool.head_dim) {
    return Wrong(op, absl::StrCat("rope is for head dimension ", rope->head_dim(),
                                  ", the pool has ", pool.head_dim));
  }
  return absl::OkStatus();
}

absl::Status CheckSegments(const char* op, std::span<const SegmentRef> segments, int pool_blocks) {
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const SegmentRef& segment = segments[s];
    if (segment.tokens < 0 ||
        static_cast<std::size_t>(segment.tokens) > segment.blocks.size() * kBlockTokens) {
      return Wrong(op, absl::StrCat("segments[", s, "] has ", segment.tokens, " tokens in ",
                                    segment.blocks.size(), " blocks"));
    }
    for (const BlockId block : segment.blocks) {
      RETURN_IF_ERROR(CheckIndex(op, "segments.blocks", s, block.value(), pool_blocks));
    }
  }
  return absl::OkStatus();
}

// Entries of every row: in order, inside the lists, and not all invisible. An idle row has none.
absl::Status CheckEntries(const PagedAttentionArgs& args) {
  constexpr const char* kOp = "paged_attention";
  const std::size_t entries = args.entry_segment.size();
  RETURN_IF_ERROR(CheckCount(kOp, "row_segments", args.row_segments.size(),
                             static_cast<std::size_t>(args.query.rows()) + 1));
  RETURN_IF_ERROR(CheckCount(kOp, "delta", args.delta.size(), entries));
  RETURN_IF_ERROR(CheckCount(kOp, "visible_tokens", args.visible_tokens.size(), entries));
  if (args.row_segments.front() != 0 ||
      static_cast<std::size_t>(args.row_segments.back()) != entries) {
    return Wrong(kOp, "row_segments does not span all entries");
  }
  for (std::size_t t = 0; t + 1 < args.row_segments.size(); ++t) {
    const int first = args.row_segments[t];
    const int last = args.row_segments[t + 1];
    if (first < 0 || last < first || static_cast<std::size_t>(last) > entries) {
      return Wrong(kOp, absl::StrCat("row_segments[", t, "] is out of order"));
    }
    bool sees_a_key = false;
    for (std::size_t e = static_cast<std::size_t>(first); e < static_cast<std::size_t>(last); ++e) {
      RETURN_IF_ERROR(CheckIndex(kOp, "entry_segment", e, args.entry_segment[e],
                                 static_cast<std::int64_t>(args.segments.size())));
      const SegmentRef& segment = args.segments[static_cast<std::size_t>(args.entry_segment[e])];
      RETURN_IF_ERROR(CheckIndex(kOp, "visible_tokens", e, args.visible_tokens[e],
                                 std::int64_t{segment.tokens} + 1));
      RETURN_IF_ERROR(CheckIndex(kOp, "|delta|", e, std::abs(std::int64_t{args.delta[e]}),
                                 args.rope->positions()));
      sees_a_key = sees_a_key || args.visible_tokens[e] > 0;
    }
    if (!sees_a_key && last > first) {
      return Wrong(kOp, absl::StrCat("row ", t, " sees no key"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSelection(const TokenSelection& row, std::size_t r, int vocabulary) {
  constexpr const char* kOp = "select_tokens";
  const auto wrong = [r](const char* field) {
    return Wrong(kOp, absl::StrCat("rows[", r, "].", field, " is out of range"));
  };
  // Written so that NaN fails.
  if (!(row.temperature >= 0 && std::isfinite(row.temperature))) {
    return wrong("temperature");
  }
  if (!(row.top_p > 0 && row.top_p <= 1)) {
    return wrong("top_p");
  }
  if (row.top_k < 0) {
    return wrong("top_k");
  }
  if (!(row.min_p >= 0 && row.min_p <= 1)) {
    return wrong("min_p");
  }
  if (!(row.repetition_penalty > 0 && std::isfinite(row.repetition_penalty))) {
    return wrong("repetition_penalty");
  }
  if (!std::isfinite(row.frequency_penalty)) {
    return wrong("frequency_penalty");
  }
  if (!std::isfinite(row.presence_penalty)) {
    return wrong("presence_penalty");
  }
  if (row.prompt_tokens < 0 || static_cast<std::size_t>(row.prompt_tokens) > row.history.size()) {
    return wrong("prompt_tokens");
  }
  if (row.logprobs.has_value() && (*row.logprobs < 0 || *row.logprobs > vocabulary)) {
    return wrong("logprobs");
  }
  for (const LogitBias& bias : row.logit_bias) {
    RETURN_IF_ERROR(CheckIndex(kOp, "logit_bias token of row", r, bias.token.value(), vocabulary));
    if (!std::isfinite(bias.bias)) {
      return wrong("logit_bias");
    }
  }
  for (const TokenId token : row.banned) {
    RETURN_IF_ERROR(CheckIndex(kOp, "banned token of row", r, token.value(), vocabulary));
  }
  // Long, and looked at only by penalties.
  if (row.repetition_penalty != 1 || row.frequency_penalty != 0 || row.presence_penalty != 0) {
    for (const TokenId token : row.history) {
      RETURN_IF_ERROR(CheckIndex(kOp, "history token of row", r, token.value(), vocabulary));
    }
  }
  if (row.forced.has_value()) {
    RETURN_IF_ERROR(CheckIndex(kOp, "forced token of row", r, row.forced->value(), vocabulary));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const EmbedTokensArgs& args) {
  constexpr const char* kOp = "embed_tokens";
  RETURN_IF_ERROR(CheckWeight(kOp, "embedding", args.embedding));
  const int tokens = static_cast<int>(args.tokens.size());
  RETURN_IF_ERROR(CheckShape(kOp, "hidden", args.hidden, {2, tokens, args.embedding->columns()}));
  for (std::size_t t = 0; t < args.tokens.size(); ++t) {
    if (args.tokens[t] != kIdleToken) {
      RETURN_IF_ERROR(CheckIndex(kOp, "tokens", t, args.tokens[t].value(), args.embedding->rows()));
    }
  }
  return absl::OkStatus();
}

absl::Status Validate(const RmsNormArgs& args) {
  constexpr const char* kOp = "rms_norm";
  const int width = args.weight.extent(0);
  RETURN_IF_ERROR(CheckShape(kOp, "weight", args.weight, {1, width}));
  RETURN_IF_ERROR(CheckShape(kOp, "input", args.input, {2, args.input.rows(), width}));
  for (std::size_t t = 0; t < args.rows.size(); ++t) {
    if (args.rows[t] != kIdleRow) {
      RETURN_IF_ERROR(CheckIndex(kOp, "rows", t, args.rows[t], args.input.rows()));
    }
  }
  const int rows = args.rows.empty() ? args.input.rows() : static_cast<int>(args.rows.size());
  RETURN_IF_ERROR(CheckShape(kOp, "output", args.output, {2, rows, width}));
  if (!(args.epsilon >= 0 && std::isfinite(args.epsilon))) {
    return Wrong(kOp, "epsilon is out of range");
  }
  return absl::OkStatus();
}

absl::Status Validate(const MatMulArgs& args) {
  constexpr const char* kOp = "mat_mul";
  RETURN_IF_ERROR(CheckWeight(kOp, "weight", args.weight));
  RETURN_IF_ERROR(
      CheckShape(kOp, "input", args.input, {2, args.input.rows(), args.weight->columns()}));
  return CheckShape(kOp, "output", args.output, {2, args.input.rows(), args.weight->rows()});
}

absl::Status Validate(const GatedMatMulArgs& args) {
  constexpr const char* kOp = "gated_mat_mul";
  RETURN_IF_ERROR(CheckWeight(kOp, "weight", args.weight));
  if (args.weight->rows() % 2 != 0) {
    return Wrong(kOp, absl::StrCat("weight has ", args.weight->rows(), " rows, not two halves"));
  }
  RETURN_IF_ERROR(
      CheckShape(kOp, "input", args.input, {2, args.input.rows(), args.weight->columns()}));
  return CheckShape(kOp, "output", args.output, {2, args.input.rows(), args.weight->rows() / 2});
}

absl::Status Validate(const RotateAndWriteKvArgs& args) {
  constexpr const char* kOp = "rotate_and_write_kv";
  RETURN_IF_ERROR(CheckPool(kOp, args.pool, args.layer));
  RETURN_IF_ERROR(CheckRope(kOp, args.rope, args.pool));
  const Shape shape{3, args.key.rows(), args.pool.kv_heads, args.pool.head_dim};
  RETURN_IF_ERROR(CheckShape(kOp, "key", args.key, shape));
  RETURN_IF_ERROR(CheckShape(kOp, "value", args.value, shape));
  const auto tokens = static_cast<std::size_t>(args.key.rows());
  RETURN_IF_ERROR(CheckCount(kOp, "rotation", args.rotation.size(), tokens));
  RETURN_IF_ERROR(CheckCount(kOp, "block", args.block.size(), tokens));
  RETURN_IF_ERROR(CheckCount(kOp, "offset", args.offset.size(), tokens));
  for (std::size_t t = 0; t < tokens; ++t) {
    RETURN_IF_ERROR(CheckIndex(kOp, "rotation", t, args.rotation[t], args.rope->positions()));
    if (args.block[t] != kIdleBlock) {
      RETURN_IF_ERROR(CheckIndex(kOp, "block", t, args.block[t].value(), args.pool.blocks));
    }
    RETURN_IF_ERROR(CheckIndex(kOp, "offset", t, args.offset[t], kBlockTokens));
  }
  return absl::OkStatus();
}

absl::Status Validate(const PagedAttentionArgs& args) {
  constexpr const char* kOp = "paged_attention";
  RETURN_IF_ERROR(CheckPool(kOp, args.pool, args.layer));
  RETURN_IF_ERROR(CheckRope(kOp, args.rope, args.pool));
  const int heads = args.query.extent(1);
  if (heads <= 0 || heads % args.pool.kv_heads != 0) {
    return Wrong(kOp, absl::StrCat("query has ", heads, " heads, the pool ", args.pool.kv_heads));
  }
  const Shape shape{3, args.query.rows(), heads, args.pool.head_dim};
  RETURN_IF_ERROR(CheckShape(kOp, "query", args.query, shape));
  RETURN_IF_ERROR(CheckShape(kOp, "output", args.output, shape));
  if (!(args.scale > 0 && std::isfinite(args.scale))) {
    return Wrong(kOp, "scale is out of range");
  }
  RETURN_IF_ERROR(CheckSegments(kOp, args.segments, args.pool.blocks));
  return CheckEntries(args);
}

absl::Status Validate(const SelectTokensArgs& args) {
  constexpr const char* kOp = "select_tokens";
  const int vocabulary = args.logits.extent(1);
  const auto rows = static_cast<std::size_t>(args.logits.rows());
  RETURN_IF_ERROR(CheckShape(kOp, "logits", args.logits, {2, args.logits.rows(), vocabulary}));
  RETURN_IF_ERROR(CheckCount(kOp, "rows", args.rows.size(), rows));
  RETURN_IF_ERROR(CheckCount(kOp, "selected", args.selected.size(), rows));
  if (rows > 0 && vocabulary <= 0) {
    return Wrong(kOp, "logits has no columns");
  }
  for (std::size_t r = 0; r < rows; ++r) {
    RETURN_IF_ERROR(CheckSelection(args.rows[r], r, vocabulary));
  }
  return absl::OkStatus();
}

absl::Status Validate(const CopyArgs& args) {
  if (args.bytes > 0 && (args.destination == nullptr || args.source == nullptr)) {
    return Wrong("copy", args.source == nullptr ? "source is not set" : "destination is not set");
  }
  return absl::OkStatus();
}

absl::Status Validate(const StepLimits& limits) {
  constexpr const char* kOp = "prepare_steps";
  if (limits.rows <= 0 || limits.logit_rows < 0 || limits.feed_forward <= 0 ||
      limits.vocabulary <= 0 || limits.context_tokens <= 0) {
    return Wrong(kOp, "a limit is not positive");
  }
  if (limits.head_dim <= 0 || limits.kv_heads <= 0 || limits.heads <= 0 ||
      limits.heads % limits.kv_heads != 0) {
    return Wrong(kOp, absl::StrCat(limits.heads, " heads over ", limits.kv_heads,
                                   " of keys, of dimension ", limits.head_dim));
  }
  return absl::OkStatus();
}

absl::Status Validate(const StepInputs& inputs) {
  constexpr const char* kOp = "run_step";
  const std::size_t rows = inputs.tokens.size();
  const std::size_t entries = inputs.entry_segment.size();
  RETURN_IF_ERROR(CheckCount(kOp, "rotation", inputs.rotation.size(), rows));
  RETURN_IF_ERROR(CheckCount(kOp, "block", inputs.block.size(), rows));
  RETURN_IF_ERROR(CheckCount(kOp, "offset", inputs.offset.size(), rows));
  RETURN_IF_ERROR(CheckCount(kOp, "row_segments", inputs.row_segments.size(), rows + 1));
  RETURN_IF_ERROR(CheckCount(kOp, "delta", inputs.delta.size(), entries));
  RETURN_IF_ERROR(CheckCount(kOp, "visible_tokens", inputs.visible_tokens.size(), entries));
  int last = 0;
  for (std::size_t t = 0; t < inputs.row_segments.size(); ++t) {
    if (inputs.row_segments[t] < last || (t == 0 && inputs.row_segments[t] != 0)) {
      return Wrong(kOp, absl::StrCat("row_segments[", t, "] is out of order"));
    }
    last = inputs.row_segments[t];
  }
  if (static_cast<std::size_t>(last) != entries) {
    return Wrong(kOp, "row_segments does not span all entries");
  }
  for (std::size_t e = 0; e < entries; ++e) {
    RETURN_IF_ERROR(CheckIndex(kOp, "entry_segment", e, inputs.entry_segment[e],
                               static_cast<std::int64_t>(inputs.segments.size())));
  }
  return absl::OkStatus();
}

absl::Status ValidateValues(const StepInputs& inputs, const StepLimits& limits) {
  constexpr const char* kOp = "run_step";
  for (std::size_t t = 0; t < inputs.tokens.size(); ++t) {
    if (inputs.tokens[t] != kIdleToken) {
      RETURN_IF_ERROR(CheckIndex(kOp, "tokens", t, inputs.tokens[t].value(), limits.vocabulary));
    }
    if (inputs.block[t] != kIdleBlock) {
      RETURN_IF_ERROR(CheckIndex(kOp, "block", t, inputs.block[t].value(), inputs.pool.blocks));
    }
    RETURN_IF_ERROR(CheckIndex(kOp, "rotation", t, inputs.rotation[t], limits.context_tokens));
    RETURN_IF_ERROR(CheckIndex(kOp, "offset", t, inputs.offset[t], kBlockTokens));
  }
  for (std::size_t r = 0; r < inputs.logit_rows.size(); ++r) {
    if (inputs.logit_rows[r] != kIdleRow) {
      RETURN_IF_ERROR(CheckIndex(kOp, "logit_rows", r, inputs.logit_rows[r],
                                 static_cast<std::int64_t>(inputs.tokens.size())));
    }
  }
  RETURN_IF_ERROR(CheckSegments(kOp, inputs.segments, inputs.pool.blocks));
  for (std::size_t e = 0; e < inputs.entry_segment.size(); ++e) {
    const SegmentRef& segment = inputs.segments[static_cast<std::size_t>(inputs.entry_segment[e])];
    RETURN_IF_ERROR(CheckIndex(kOp, "visible_tokens", e, inputs.visible_tokens[e],
                               std::int64_t{segment.tokens} + 1));
    RETURN_IF_ERROR(CheckIndex(kOp, "|delta|", e, std::abs(std::int64_t{inputs.delta[e]}),
                               limits.context_tokens));
  }
  return absl::OkStatus();
}

absl::Status ValidateWeightShape(int rows, int columns) {
  if (rows <= 0 || columns <= 0 || columns % 2 != 0) {
    return Wrong("pack", absl::StrCat("a weight of ", rows, " rows and ", columns,
                                      " columns: both must be positive, columns even"));
  }
  return absl::OkStatus();
}

absl::Status ValidateRope(std::span<const double> frequencies, int positions) {
  if (frequencies.empty() || positions <= 0) {
    return Wrong("make_rope_table", "needs at least one frequency and one position");
  }
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    if (!std::isfinite(frequencies[i])) {
      return Wrong("make_rope_table", absl::StrCat("frequencies[", i, "] is not finite"));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton
