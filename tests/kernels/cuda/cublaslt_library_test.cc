#include "kernels/cuda/cublaslt_library.h"

#include <gtest/gtest.h>

#include <string>

namespace baton::cuda {
namespace {

// Needs the library, not a GPU: names of functions are looked up at run time, where no linker sees
// a wrong one.
TEST(CublasLtLibrary, HasEveryFunctionThatIsUsed) {
  const absl::StatusOr<const CublasLtLibrary*> library = OpenCublasLt();
  if (absl::IsFailedPrecondition(library.status()) &&
      std::string(library.status().message()).find("cannot be opened") != std::string::npos) {
    GTEST_SKIP() << library.status();
  }
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_EQ(*OpenCublasLt(), *library);
  EXPECT_TRUE(ToStatus(**library, CUBLAS_STATUS_SUCCESS, "nothing").ok());
  const absl::Status failed = ToStatus(**library, CUBLAS_STATUS_NOT_SUPPORTED, "a product");
  EXPECT_TRUE(absl::IsInternal(failed));
  EXPECT_EQ(std::string(failed.message()), "a product: CUBLAS_STATUS_NOT_SUPPORTED");
}

}  // namespace
}  // namespace baton::cuda
