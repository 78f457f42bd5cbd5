#include "kernels/cpu/cpu_backend.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/packed_weight.h"
#include "kernels/cpu/paged_attention.h"
#include "kernels/cpu/rope_table.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/token_selector.h"
#include "kernels/validate.h"

namespace baton {
namespace {

constexpr int kMaxThreads = 256;
constexpr std::size_t kDefaultPoolBytes = std::size_t{2} << 30;

// Rows of small operations that one thread takes at a time.
constexpr int kRowsPerShare = 8;

std::uint16_t* Bits(BFloat16* p) {
  return reinterpret_cast<std::uint16_t*>(p);
}
const std::uint16_t* Bits(const BFloat16* p) {
  return reinterpret_cast<const std::uint16_t*>(p);
}

// How a matrix product is cut: into runs of panels, since weights are asked for ahead of use across
// the end of a panel, and into runs of rows as well where panels alone leave threads idle.
class MatMulShares {
 public:
  struct Share {
    int first_panel;
    int end_panel;
    int first_row;
    int end_row;
  };

  MatMulShares(int panels, int rows, int threads) : panels_(panels), rows_(rows) {
    // Four shares for each thread even out what other processes take from some of them.
    const int wanted = threads == 1 ? 1 : 4 * threads;
    panel_runs_ = std::min(panels, wanted);
    row_runs_ = std::clamp(wanted / panel_runs_, 1, std::max(1, rows / kFewestRows));
  }

  int count() const { return panel_runs_ * row_runs_; }

  Share operator[](int share) const {
    const int panel_run = share / row_runs_;
    const int row_run = share % row_runs_;
    return {.first_panel = Cut(panels_, panel_run, panel_runs_),
            .end_panel = Cut(panels_, panel_run + 1, panel_runs_),
            .first_row = Cut(rows_, row_run, row_runs_),
            .end_row = Cut(rows_, row_run + 1, row_runs_)};
  }

 private:
  static constexpr int kFewestRows = 24;  // fewer would read weights for too little work

  static int Cut(int size, int run, int runs) {
    return static_cast<int>(std::int64_t{size} * run / runs);
  }

  int panels_;
  int rows_;
  int panel_runs_;
  int row_runs_;
};

// The CPU backend: everything runs to its end inside the call. Rows, heads and output columns are
// split over threads; a sum never is.
//
// Not thread-safe: used only by the engine thread.
class CpuBackend final : public Backend {
 public:
  CpuBackend(const KernelTable& kernels, int threads)
      : kernels_(kernels), pool_(threads), attention_(kernels, pool_) {
    for (int i = 0; i < threads; ++i) {
      selectors_.emplace_back(kernels);
    }
  }

  std::string_view name() const override { return "cpu"; }
  std::string_view arithmetic() const override { return kernels_.arithmetic; }

  KvLayout LayoutFor(int layers, int kv_heads, int head_dim) const override {
    return {.layers = layers,
            .kv_heads = kv_heads,
            .head_dim = head_dim,
            .element_type = "bf16",
            .layout_id = "cpu-kpair-v1",
            .layer_bytes = static_cast<std::size_t>(kv_heads) * HeadBytes(head_dim)};
  }

  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(std::size_t bytes) override {
    return AllocateHostMemory(bytes);
  }
  absl::StatusOr<MemoryBudget> Memory() override;

  absl::StatusOr<std::unique_ptr<PackedWeight>> Pack(int rows,
                                                     int columns,
                                                     const RowReader& reader) override {
    return CpuPackedWeight::Create(rows, columns, reader, weight_memory_,
                                   kernels_.reads_compact_weights ? &compact_memory_ : nullptr);
  }

  absl::StatusOr<std::unique_ptr<RopeTable>> MakeRopeTable(std::span<const double> frequencies,
                                                           int positions) override {
    RETURN_IF_ERROR(ValidateRope(frequencies, positions));
    return std::make_unique<CpuRopeTable>(frequencies, positions);
  }

  absl::StatusOr<StepProgram> PrepareSteps(const StepLimits& limits) override {
    RETURN_IF_ERROR(Validate(limits));
    return StepProgram(++programs_);
  }
  int PaddedRows(const StepInputs& inputs) override {
    return static_cast<int>(inputs.tokens.size());
  }
  absl::Status RunStep(const StepInputs& inputs,
                       absl::FunctionRef<absl::Status()> operations) override {
    RETURN_IF_ERROR(Validate(inputs));
    return operations();
  }

  absl::Status EmbedTokens(const EmbedTokensArgs& args) override;
  absl::Status RmsNorm(const RmsNormArgs& args) override;
  absl::Status MatMul(const MatMulArgs& args) override;
  absl::Status GatedMatMul(const GatedMatMulArgs& args) override;
  absl::Status RotateAndWriteKv(const RotateAndWriteKvArgs& args) override;
  absl::Status PagedAttention(const PagedAttentionArgs& args) override;
  absl::Status SelectTokens(const SelectTokensArgs& args) override;

  absl::Status Copy(const CopyArgs& args) override {
    RETURN_IF_ERROR(Validate(args));
    if (args.bytes > 0) {
      std::memmove(args.destination, args.source, args.bytes);
    }
    return absl::OkStatus();
  }

  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  // Calls body(row) for every row, in shares.
  void ForRows(int rows, absl::FunctionRef<void(int row)> body) {
    pool_.ParallelFor((rows + kRowsPerShare - 1) / kRowsPerShare, [&](int share, int) {
      const int end = std::min(rows, (share + 1) * kRowsPerShare);
      for (int row = share * kRowsPerShare; row < end; ++row) {
        body(row);
      }
    });
  }

  // For a width off the grid of panels, where a panel holds gates and what they multiply.
  absl::Status GatedMatMulInTwoSteps(const GatedMatMulArgs& args, int width);

  const KernelTable& kernels_;
  ThreadPool pool_;
  CpuPagedAttention attention_;
  std::vector<TokenSelector> selectors_;  // one for each thread
  HugePageArena weight_memory_;
  HugePageArena compact_memory_;
  std::vector<float> gate_up_;  // [T, 2F] of GatedMatMulInTwoSteps
  std::uint32_t programs_ = 0;
};

absl::StatusOr<const CpuPackedWeight*> OwnWeight(const char* op, const PackedWeight& weight) {
  const auto* own = dynamic_cast<const CpuPackedWeight*>(&weight);
  if (own == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": the weight was packed by another backend"));
  }
  return own;
}

absl::Status CheckPoolLayout(const char* op, const KvPoolView& pool) {
  if (pool.head_dim % 2 != 0 ||
      pool.layer_bytes != static_cast<std::size_t>(pool.kv_heads) * HeadBytes(pool.head_dim)) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": pool does not have this backend's layout"));
  }
  return absl::OkStatus();
}

absl::StatusOr<const CpuRopeTable*> OwnRope(const char* op, const RopeTable& rope) {
  const auto* own = dynamic_cast<const CpuRopeTable*>(&rope);
  if (own == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": the rope table was made by another backend"));
  }
  return own;
}

absl::StatusOr<MemoryBudget> CpuBackend::Memory() {
  const long pages = sysconf(_SC_AVPHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGESIZE);
  if (pages < 0 || page_bytes < 0) {
    return absl::InternalError("the system does not say how much memory is free");
  }
  return MemoryBudget{
      .free_bytes = static_cast<std::size_t>(pages) * static_cast<std::size_t>(page_bytes),
      .default_pool_bytes = kDefaultPoolBytes};
}

absl::Status CpuBackend::EmbedTokens(const EmbedTokensArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  ASSIGN_OR_RETURN(const CpuPackedWeight* embedding, OwnWeight("embed_tokens", *args.embedding));
  ForRows(args.hidden.rows(), [&](int t) {
    const TokenId token = args.tokens[static_cast<std::size_t>(t)];
    if (token == kIdleToken) {
      std::fill_n(args.hidden.Row(t), args.hidden.extent(1), 0.0f);
    } else {
      embedding->ReadRow(static_cast<int>(token.value()), args.hidden.Row(t));
    }
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::RmsNorm(const RmsNormArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  ForRows(args.output.rows(), [&](int t) {
    const int row = args.rows.empty() ? t : args.rows[static_cast<std::size_t>(t)];
    if (row == kIdleRow) {
      std::fill_n(args.output.Row(t), args.output.extent(1), BFloat16{});
      return;
    }
    kernels_.rms_norm_row(args.input.Row(row), args.weight.data(), args.epsilon,
                          args.weight.extent(0), Bits(args.output.Row(t)));
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::MatMul(const MatMulArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  ASSIGN_OR_RETURN(const CpuPackedWeight* weight, OwnWeight("mat_mul", *args.weight));
  if (args.input.rows() == 0) {
    return absl::OkStatus();
  }
  const MatMulShares shares(weight->panels(), args.input.rows(), pool_.threads());
  pool_.ParallelFor(shares.count(), [&](int share, int) {
    const auto [first_panel, end_panel, first_row, end_row] = shares[share];
    const int column = first_panel * kPanelColumns;
    kernels_.mat_mul_panels(
        {.panels = weight->panel(first_panel),
         .compact = weight->compact_panels(first_panel),
         .input = Bits(args.input.Row(first_row)),
         .input_stride = args.input.row_stride(),
         .rows = end_row - first_row,
         .word_columns = weight->columns() / 2,
         .output = args.output.Row(first_row) + column,
         .output_stride = args.output.row_stride(),
         .columns = std::min(end_panel * kPanelColumns, weight->rows()) - column,
         .accumulate = args.accumulate});
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::GatedMatMul(const GatedMatMulArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  ASSIGN_OR_RETURN(const CpuPackedWeight* weight, OwnWeight("gated_mat_mul", *args.weight));
  if (args.input.rows() == 0) {
    return absl::OkStatus();
  }
  const int width = weight->rows() / 2;
  if (width % kPanelColumns != 0) {
    return GatedMatMulInTwoSteps(args, width);
  }
  const int panels = width / kPanelColumns;
  const MatMulShares shares(panels, args.input.rows(), pool_.threads());
  pool_.ParallelFor(shares.count(), [&](int share, int) {
    const auto [first_panel, end_panel, first_row, end_row] = shares[share];
    kernels_.gated_mat_mul_panels(
        {.gate_panels = weight->panel(first_panel),
         .up_panels = weight->panel(panels + first_panel),
         .compact_gate = weight->compact_panels(first_panel),
         .compact_up = weight->compact_panels(panels + first_panel),
         .panels = end_panel - first_panel,
         .input = Bits(args.input.Row(first_row)),
         .input_stride = args.input.row_stride(),
         .rows = end_row - first_row,
         .word_columns = weight->columns() / 2,
         .output = Bits(args.output.Row(first_row)) + first_panel * kPanelColumns,
         .output_stride = args.output.row_stride()});
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::GatedMatMulInTwoSteps(const GatedMatMulArgs& args, int width) {
  const int rows = args.input.rows();
  gate_up_.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(2 * width));
  const TensorView<float> gate_up(gate_up_.data(), rows, 2 * width);
  RETURN_IF_ERROR(MatMul({.input = args.input, .weight = args.weight, .output = gate_up}));
  ForRows(rows, [&](int t) {
    const float* gate = gate_up.Row(t);
    kernels_.silu_multiply_row(gate, gate + width, width, Bits(args.output.Row(t)));
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::RotateAndWriteKv(const RotateAndWriteKvArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  RETURN_IF_ERROR(CheckPoolLayout("rotate_and_write_kv", args.pool));
  ASSIGN_OR_RETURN(const CpuRopeTable* rope, OwnRope("rotate_and_write_kv", *args.rope));
  WriteKv(args, *rope, kernels_, pool_);
  return absl::OkStatus();
}

absl::Status CpuBackend::PagedAttention(const PagedAttentionArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  RETURN_IF_ERROR(CheckPoolLayout("paged_attention", args.pool));
  ASSIGN_OR_RETURN(const CpuRopeTable* rope, OwnRope("paged_attention", *args.rope));
  return attention_.Run(args, *rope);
}

absl::Status CpuBackend::SelectTokens(const SelectTokensArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  std::vector<absl::Status> statuses(args.rows.size());
  pool_.ParallelFor(args.logits.rows(), [&](int r, int thread) {
    const auto row = static_cast<std::size_t>(r);
    statuses[row] = selectors_[static_cast<std::size_t>(thread)].Select(
        args.logits.Row(r), args.logits.extent(1), args.rows[row], args.selected[row]);
  });
  for (absl::Status& status : statuses) {
    RETURN_IF_ERROR(std::move(status));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const CpuOptions& options) {
  if (options.threads < 1 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("cpu threads: ", options.threads, " is not in [1, ", kMaxThreads, "]"));
  }
  ASSIGN_OR_RETURN(const KernelTable* kernels, ChooseKernels(options.isa));
  return std::make_unique<CpuBackend>(*kernels, options.threads);
}

}  // namespace baton
