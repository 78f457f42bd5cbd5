#pragma once

#include <cublasLt.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::cuda {

// The functions of cuBLASLt that are used here, from a library opened at run time and never closed.
struct CublasLtLibrary {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetStatusName) status_name;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoCheck) algo_check;
  decltype(&cublasLtMatmulAlgoGetHeuristic) algo_heuristic;
  decltype(&cublasLtMatmulDescCreate) matmul_create;
  decltype(&cublasLtMatmulDescDestroy) matmul_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) matmul_set;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
};

// The same object at every call. FAILED_PRECONDITION naming what is missing. Thread-safe.
absl::StatusOr<const CublasLtLibrary*> OpenCublasLt();

// INTERNAL, RESOURCE_EXHAUSTED for memory; names `what` was attempted.
absl::Status ToStatus(const CublasLtLibrary& library, cublasStatus_t status, const char* what);

}  // namespace baton::cuda
