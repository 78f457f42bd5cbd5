#include "kernels/profiled_backend.h"

namespace baton {
namespace {

OperationCall ProductCall(Operation operation, int rows, const PackedWeight* weight) {
  OperationCall call{.operation = operation, .rows = rows};
  if (weight != nullptr) {  // without one the inner backend refuses the call
    call.weight_rows = weight->rows();
    call.weight_columns = weight->columns();
  }
  return call;
}

}  // namespace

void ProfiledBackend::Reset() {
  times_ = {};
  calls_.clear();  // keeps its memory for the next step
}

template <typename Compute>
absl::Status ProfiledBackend::Measure(OperationCall call, const Compute& compute) {
  begun_.fetch_add(1, std::memory_order_relaxed);
  call.start = clock_.Now();
  absl::Status status = compute();
  call.duration = clock_.Now() - call.start;
  OperationTimes::Sum& sum = times_[call.operation];
  ++sum.calls;
  sum.time += call.duration;
  if (keeps_calls_) {
    calls_.push_back(call);
  }
  return status;
}

absl::Status ProfiledBackend::EmbedTokens(const EmbedTokensArgs& args) {
  return Measure({.operation = Operation::kEmbedTokens, .rows = args.hidden.rows()},
                 [&] { return inner_.EmbedTokens(args); });
}

absl::Status ProfiledBackend::RmsNorm(const RmsNormArgs& args) {
  return Measure({.operation = Operation::kRmsNorm, .rows = args.output.rows()},
                 [&] { return inner_.RmsNorm(args); });
}

absl::Status ProfiledBackend::MatMul(const MatMulArgs& args) {
  return Measure(ProductCall(Operation::kMatMul, args.input.rows(), args.weight),
                 [&] { return inner_.MatMul(args); });
}

absl::Status ProfiledBackend::GatedMatMul(const GatedMatMulArgs& args) {
  return Measure(ProductCall(Operation::kGatedMatMul, args.input.rows(), args.weight),
                 [&] { return inner_.GatedMatMul(args); });
}

absl::Status ProfiledBackend::RotateAndWriteKv(const RotateAndWriteKvArgs& args) {
  return Measure({.operation = Operation::kRotateAndWriteKv, .rows = args.key.rows()},
                 [&] { return inner_.RotateAndWriteKv(args); });
}

absl::Status ProfiledBackend::PagedAttention(const PagedAttentionArgs& args) {
  return Measure({.operation = Operation::kPagedAttention, .rows = args.query.rows()},
                 [&] { return inner_.PagedAttention(args); });
}

absl::Status ProfiledBackend::SelectTokens(const SelectTokensArgs& args) {
  return Measure({.operation = Operation::kSelectTokens, .rows = args.logits.rows()},
                 [&] { return inner_.SelectTokens(args); });
}

absl::Status ProfiledBackend::Copy(const CopyArgs& args) {
  return Measure({.operation = Operation::kCopy}, [&] { return inner_.Copy(args); });
}

absl::Status ProfiledBackend::Synchronize() {
  return Measure({.operation = Operation::kSynchronize}, [&] { return inner_.Synchronize(); });
}

}  // namespace baton
