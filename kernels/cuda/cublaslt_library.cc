#include "kernels/cuda/cublaslt_library.h"

#include <dlfcn.h>

#include <array>
#include <string>

#include "absl/strings/str_cat.h"

namespace baton::cuda {
namespace {

std::string LastLoaderError() {
  const char* const text = dlerror();
  return text == nullptr ? "no reason given" : text;
}

absl::StatusOr<void*> OpenLibrary() {
  const std::string versioned = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  const std::string installed = absl::StrCat("/usr/local/cuda/lib64/", versioned);
  std::string reason;
  for (const std::string& name : {versioned, installed}) {
    if (void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) {
      return library;
    }
    absl::StrAppend(&reason, reason.empty() ? "" : "; ", LastLoaderError());
  }
  return absl::FailedPreconditionError(
      absl::StrCat("matrix products need cuBLASLt, which cannot be opened: ", reason));
}

absl::StatusOr<CublasLtLibrary> Load() {
  const absl::StatusOr<void*> opened = OpenLibrary();
  if (!opened.ok()) {
    return opened.status();
  }
  CublasLtLibrary functions{};
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    void* const symbol = dlsym(*opened, name);
    if (symbol == nullptr) {
      absl::StrAppend(&missing, " ", name);
    }
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  find(functions.create, "cublasLtCreate");
  find(functions.destroy, "cublasLtDestroy");
  find(functions.status_name, "cublasLtGetStatusName");
  find(functions.matmul, "cublasLtMatmul");
  find(functions.algo_check, "cublasLtMatmulAlgoCheck");
  find(functions.algo_heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(functions.matmul_create, "cublasLtMatmulDescCreate");
  find(functions.matmul_destroy, "cublasLtMatmulDescDestroy");
  find(functions.matmul_set, "cublasLtMatmulDescSetAttribute");
  find(functions.preference_create, "cublasLtMatmulPreferenceCreate");
  find(functions.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(functions.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(functions.layout_create, "cublasLtMatrixLayoutCreate");
  find(functions.layout_destroy, "cublasLtMatrixLayoutDestroy");
  if (!missing.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("cuBLASLt lacks", missing));
  }
  return functions;
}

}  // namespace

absl::StatusOr<const CublasLtLibrary*> OpenCublasLt() {
  static const absl::StatusOr<CublasLtLibrary> library = Load();
  if (!library.ok()) {
    return library.status();
  }
  return &*library;
}

absl::Status ToStatus(const CublasLtLibrary& library, cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) {
    return absl::OkStatus();
  }
  const std::string message = absl::StrCat(what, ": ", library.status_name(status));
  return status == CUBLAS_STATUS_ALLOC_FAILED ? absl::ResourceExhaustedError(message)
                                              : absl::InternalError(message);
}

}  // namespace baton::cuda
