#include "kernels/cuda/cublaslt_gemm.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/cublaslt_library.h"
#include "kernels/cuda/handles.h"

namespace baton::cuda {
namespace {

// What NVIDIA asks for on Hopper, where split sums need the most.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

// A descriptor that the library makes and takes back.
template <typename Handle>
class Owned {
 public:
  using Destroy = cublasStatus_t (*)(Handle);
  Owned() = default;
  Owned(Handle handle, Destroy destroy) : handle_(handle), destroy_(destroy) {}
  ~Owned() {
    if (handle_ != nullptr) {
      destroy_(handle_);
    }
  }
  Owned(Owned&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), destroy_(other.destroy_) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(destroy_, other.destroy_);
    return *this;
  }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
  Destroy destroy_ = nullptr;
};

// Bytes, up to 16, that address and distance between rows are multiples of.
std::uint32_t AlignmentOf(const void* data, std::int64_t stride_bytes) {
  const auto bits = reinterpret_cast<std::uintptr_t>(data) |
                    static_cast<std::uintptr_t>(stride_bytes) | std::uintptr_t{16};
  return std::uint32_t{1} << std::countr_zero(bits);
}

// Everything that an algorithm depends on.
struct Shape {
  int rows = 0;
  int columns = 0;
  int inner = 0;
  std::int64_t input_stride = 0;
  std::int64_t output_stride = 0;
  std::uint32_t weight_alignment = 0;
  std::uint32_t input_alignment = 0;
  std::uint32_t output_alignment = 0;
  Element element = Element::kBFloat16;

  friend auto operator<=>(const Shape&, const Shape&) = default;
};

Shape ShapeOf(const GemmParams& p) {
  return {.rows = p.rows,
          .columns = p.columns,
          .inner = p.inner,
          .input_stride = p.input_stride,
          .output_stride = p.output_stride,
          .weight_alignment = AlignmentOf(p.weight, 2 * std::int64_t{p.inner}),
          .input_alignment = AlignmentOf(p.input, 2 * p.input_stride),
          .output_alignment = AlignmentOf(p.output, 4 * p.output_stride),
          .element = p.element};
}

Shape RoundedUp(Shape shape) {
  shape.rows = static_cast<int>(std::bit_ceil(static_cast<unsigned>(shape.rows)));
  return shape;
}

// cuBLASLt counts columns first: it computes output^T [N, T] = weight [N, K] * input^T [K, T].
struct Layouts {
  Owned<cublasLtMatrixLayout_t> weight;  // [K, N], taken transposed
  Owned<cublasLtMatrixLayout_t> input;   // [K, T]
  Owned<cublasLtMatrixLayout_t> output;  // [N, T]
};

struct Plan {
  Layouts layouts;
  cublasLtMatmulAlgo_t algorithm{};
};

class CublasLtGemm final : public Gemm {
 public:
  static absl::StatusOr<std::unique_ptr<Gemm>> Create(Device& device);

  std::string_view name() const override { return "cublaslt"; }
  std::size_t workspace_bytes() const override { return workspace_.size_bytes(); }
  absl::Status Prepare(const GemmParams& params) override { return PlanFor(params).status(); }
  absl::Status Run(const GemmParams& params, StreamHandle stream) override;

 private:
  explicit CublasLtGemm(const CublasLtLibrary& library) : library_(library) {}

  absl::Status Check(cublasStatus_t status, const char* what) const {
    return ToStatus(library_, status, what);
  }
  absl::StatusOr<const Plan*> PlanFor(const GemmParams& params);
  absl::StatusOr<Layouts> MakeLayouts(const Shape& shape) const;
  absl::StatusOr<Owned<cublasLtMatrixLayout_t>> MakeLayout(Element element,
                                                           bool is_float,
                                                           std::pair<int, int> extents,
                                                           std::int64_t stride) const;
  absl::StatusOr<cublasLtMatmulAlgo_t> AskHeuristic(const Shape& shape,
                                                    const Layouts& layouts) const;
  bool CanRun(const Layouts& layouts, const cublasLtMatmulAlgo_t& algorithm) const;

  const CublasLtLibrary& library_;
  Owned<cublasLtHandle_t> handle_;
  Owned<cublasLtMatmulDesc_t> product_;
  DeviceBuffer<std::byte> workspace_;
  std::map<Shape, cublasLtMatmulAlgo_t> algorithms_;  // by shapes with rounded rows
  std::map<Shape, Plan> plans_;
};

absl::StatusOr<std::unique_ptr<Gemm>> CublasLtGemm::Create(Device& device) {
  ASSIGN_OR_RETURN(const CublasLtLibrary* library, OpenCublasLt());
  std::unique_ptr<CublasLtGemm> gemm(new CublasLtGemm(*library));
  cublasLtHandle_t handle = nullptr;
  RETURN_IF_ERROR(gemm->Check(library->create(&handle), "start cuBLASLt"));
  gemm->handle_ = {handle, library->destroy};
  cublasLtMatmulDesc_t product = nullptr;
  RETURN_IF_ERROR(gemm->Check(library->matmul_create(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                              "describe a product"));
  gemm->product_ = {product, library->matmul_destroy};
  const cublasOperation_t transposed = CUBLAS_OP_T;
  RETURN_IF_ERROR(gemm->Check(
      library->matmul_set(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
      "describe a product"));
  ASSIGN_OR_RETURN(gemm->workspace_, DeviceBuffer<std::byte>::Create(device, kWorkspaceBytes));
  return gemm;
}

absl::StatusOr<Owned<cublasLtMatrixLayout_t>> CublasLtGemm::MakeLayout(Element element,
                                                                       bool is_float,
                                                                       std::pair<int, int> extents,
                                                                       std::int64_t stride) const {
  const cudaDataType_t type = is_float                        ? CUDA_R_32F
                              : element == Element::kBFloat16 ? CUDA_R_16BF
                                                              : CUDA_R_16F;
  cublasLtMatrixLayout_t layout = nullptr;
  RETURN_IF_ERROR(
      Check(library_.layout_create(&layout, type, static_cast<std::uint64_t>(extents.first),
                                   static_cast<std::uint64_t>(extents.second), stride),
            "describe a matrix"));
  return Owned<cublasLtMatrixLayout_t>(layout, library_.layout_destroy);
}

absl::StatusOr<Layouts> CublasLtGemm::MakeLayouts(const Shape& shape) const {
  Layouts layouts;
  ASSIGN_OR_RETURN(layouts.weight,
                   MakeLayout(shape.element, false, {shape.inner, shape.columns}, shape.inner));
  ASSIGN_OR_RETURN(layouts.input,
                   MakeLayout(shape.element, false, {shape.inner, shape.rows}, shape.input_stride));
  ASSIGN_OR_RETURN(layouts.output, MakeLayout(shape.element, true, {shape.columns, shape.rows},
                                              shape.output_stride));
  return layouts;
}

absl::StatusOr<cublasLtMatmulAlgo_t> CublasLtGemm::AskHeuristic(const Shape& shape,
                                                                const Layouts& layouts) const {
  cublasLtMatmulPreference_t raw = nullptr;
  RETURN_IF_ERROR(Check(library_.preference_create(&raw), "describe a choice of algorithms"));
  const Owned<cublasLtMatmulPreference_t> preference(raw, library_.preference_destroy);
  const std::uint64_t workspace_bytes = workspace_.size_bytes();
  // Not in place: there the order of sums is the order in which blocks come.
  const std::uint32_t reductions =
      CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return Check(library_.preference_set(raw, attribute, &value, sizeof(value)),
                 "describe a choice of algorithms");
  };
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes));
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions));
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.weight_alignment));
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.input_alignment));
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.output_alignment));
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.output_alignment));
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  RETURN_IF_ERROR(Check(library_.algo_heuristic(handle_.get(), product_.get(), layouts.weight.get(),
                                                layouts.input.get(), layouts.output.get(),
                                                layouts.output.get(), raw, 1, &best, &found),
                        "choose an algorithm"));
  if (found == 0) {
    return absl::InternalError(absl::StrCat("cuBLASLt has no algorithm for a product of ",
                                            shape.rows, " x ", shape.columns, " x ", shape.inner));
  }
  return best.algo;
}

bool CublasLtGemm::CanRun(const Layouts& layouts, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result{};
  return library_.algo_check(handle_.get(), product_.get(), layouts.weight.get(),
                             layouts.input.get(), layouts.output.get(), layouts.output.get(),
                             &algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= workspace_.size_bytes();
}

absl::StatusOr<const Plan*> CublasLtGemm::PlanFor(const GemmParams& params) {
  const Shape shape = ShapeOf(params);
  if (const auto found = plans_.find(shape); found != plans_.end()) {
    return &found->second;
  }
  const Shape rounded = RoundedUp(shape);
  auto algorithm = algorithms_.find(rounded);
  if (algorithm == algorithms_.end()) {
    ASSIGN_OR_RETURN(const Layouts layouts, MakeLayouts(rounded));
    ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t chosen, AskHeuristic(rounded, layouts));
    algorithm = algorithms_.emplace(rounded, chosen).first;
  }
  Plan plan{.algorithm = algorithm->second};
  ASSIGN_OR_RETURN(plan.layouts, MakeLayouts(shape));
  if (!CanRun(plan.layouts, plan.algorithm)) {
    ASSIGN_OR_RETURN(plan.algorithm, AskHeuristic(shape, plan.layouts));
  }
  return &plans_.emplace(shape, std::move(plan)).first->second;
}

absl::Status CublasLtGemm::Run(const GemmParams& params, StreamHandle stream) {
  if (params.rows == 0) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Plan* plan, PlanFor(params));
  const float alpha = 1;
  const float beta = params.accumulate ? 1 : 0;
  return Check(library_.matmul(handle_.get(), product_.get(), &alpha, params.weight,
                               plan->layouts.weight.get(), params.input, plan->layouts.input.get(),
                               &beta, params.output, plan->layouts.output.get(), params.output,
                               plan->layouts.output.get(), &plan->algorithm, workspace_.get(),
                               workspace_.size_bytes(), reinterpret_cast<cudaStream_t>(stream)),
               "multiply matrices");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Gemm>> CreateCublasLtGemm(Device& device) {
  return CublasLtGemm::Create(device);
}

}  // namespace baton::cuda
