#include "kernels/backends.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kernels/cuda/devices.h"

namespace baton {
namespace {

using testing::HasSubstr;

TEST(CreateBackend, TheCpuIsAskedForByName) {
  const auto chosen = CreateBackend({.device = "cpu", .cpu = {.isa = "plain"}});
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(std::string(chosen->backend->arithmetic()), "cpu-plain");
  EXPECT_EQ(chosen->device, nullptr);
}

TEST(CreateBackend, AutoTakesAGpuWhereThereIsOneAndSaysWhyNot) {
  const auto chosen = CreateBackend({.device = "auto"});
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  const bool has_gpu = OpenGpu().ok();
  EXPECT_EQ(std::string(chosen->backend->name()), has_gpu ? "cuda" : "cpu");
  EXPECT_EQ(chosen->device != nullptr, has_gpu);
  EXPECT_THAT(chosen->reason, HasSubstr(has_gpu ? "found" : "no GPU: "));
}

TEST(CreateBackend, CudaIsNeverReplacedByAnotherDevice) {
  const auto chosen = CreateBackend({.device = "cuda"});
  if (OpenGpu().ok()) {
    ASSERT_TRUE(chosen.ok()) << chosen.status();
    EXPECT_EQ(std::string(chosen->backend->name()), "cuda");
    return;
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(chosen.status())) << chosen.status();
  EXPECT_THAT(std::string(chosen.status().message()), HasSubstr("device cuda: "));
}

TEST(CreateBackend, AnEmulationSaysThatItIsOne) {
  const auto chosen = CreateBackend({.device = "emulated"});
  if (absl::IsFailedPrecondition(chosen.status())) {
    EXPECT_THAT(std::string(chosen.status().message()), HasSubstr("BATON_EMULATION"));
    GTEST_SKIP() << chosen.status();
  }
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(std::string(chosen->backend->name()), "emulated");
  EXPECT_EQ(std::string(chosen->backend->arithmetic()), "cuda-emulated");
  EXPECT_NE(chosen->device, nullptr);
  EXPECT_THAT(chosen->reason, HasSubstr("stand-in for cuBLASLt"));
}

TEST(CreateBackend, RefusesANameThatIsNone) {
  const auto chosen = CreateBackend({.device = "tpu"});
  EXPECT_TRUE(absl::IsInvalidArgument(chosen.status())) << chosen.status();
  EXPECT_THAT(std::string(chosen.status().message()), HasSubstr("'tpu'"));
}

// No layout and no arithmetic of a CPU: a worker on one never pairs with one on the other.
TEST(CreateBackend, DevicesDoNotShareALayout) {
  const auto emulated = CreateBackend({.device = "emulated"});
  if (!emulated.ok()) {
    GTEST_SKIP() << emulated.status();
  }
  const auto cpu = CreateBackend({.device = "cpu"});
  const KvLayout ours = emulated->backend->LayoutFor(2, 3, 64);
  EXPECT_EQ(ours.layout_id, "cuda-token-major-v1");
  EXPECT_EQ(ours.element_type, "bf16");
  EXPECT_NE(ours.layout_id, cpu->backend->LayoutFor(2, 3, 64).layout_id);
  EXPECT_EQ(ours.layer_bytes, cpu->backend->LayoutFor(2, 3, 64).layer_bytes);
}

}  // namespace
}  // namespace baton
