// What an engine on a device says and leaves behind when memory is short.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "engine/engine.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/emulation/host_device.h"
#include "tests/support/tiny_checkpoint.h"

namespace baton {
namespace {

using emulated::HostDevice;
using testing::HasSubstr;

constexpr std::size_t kMebi = std::size_t{1} << 20;

class CudaMemoryTest : public testing::Test {
 protected:
  // A backend on a device with so much memory.
  std::unique_ptr<Backend> MakeBackend(std::size_t memory_bytes) {
    auto device = std::make_unique<HostDevice>(HostDevice::Options{.memory_bytes = memory_bytes});
    device_ = device.get();
    auto backend = cuda::CreateCudaBackend(std::move(device));
    EXPECT_TRUE(backend.ok()) << backend.status();
    return *std::move(backend);
  }

  const TinyCheckpoint model_;
  HostDevice* device_ = nullptr;  // of the last backend
};

TEST_F(CudaMemoryTest, AStartThatDoesNotFitSaysWhatEachPartNeeds) {
  const std::unique_ptr<Backend> backend = MakeBackend(40 * kMebi);

  const absl::Status status =
      Engine::Create({.kv_pool_bytes = 64 * kMebi}, *model_, *backend).status();

  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("allocate 67108864 bytes of device memory: "
                                 "cudaErrorMemoryAllocation"));
  EXPECT_THAT(message, HasSubstr("needed: weights 2.1 MiB, activations "));
  EXPECT_THAT(message, HasSubstr("KV pool 64.0 MiB, workspace "));
  EXPECT_THAT(message, HasSubstr("free at the start: 40.0 MiB"));
  EXPECT_EQ(message.find("workspace 0"), std::string::npos) << message;
  EXPECT_EQ(device_->allocated_bytes(), 40 * kMebi - *device_->FreeBytes());
}

// Whichever allocation it is that fails: a status, and nothing stays behind.
TEST_F(CudaMemoryTest, EveryAllocationMayFail) {
  const std::unique_ptr<Backend> backend = MakeBackend(256 * kMebi);
  int failures = 0;
  while (true) {
    device_->FailAllocation(failures + 1);
    const auto engine = Engine::Create({.kv_pool_bytes = kMebi}, *model_, *backend);
    if (engine.ok()) {
      break;
    }
    EXPECT_TRUE(absl::IsResourceExhausted(engine.status())) << engine.status();
    ++failures;
    ASSERT_LT(failures, 200);
  }
  EXPECT_GT(failures, 15) << "weights, activations and the pool are more than that";
}

TEST_F(CudaMemoryTest, TheNeedsAreWhatIsTaken) {
  const std::unique_ptr<Backend> backend = MakeBackend(256 * kMebi);
  const EngineOptions options{.kv_pool_bytes = 16 * kMebi};
  const auto engine = Engine::Create(options, *model_, *backend);
  ASSERT_TRUE(engine.ok()) << engine.status();

  const MemoryNeeds needs = NeedsOf(model_->config(), options.limits.max_batch_tokens,
                                    options.limits.max_sequences + options.limits.max_logprob_rows);
  const std::size_t sum =
      needs.weights + needs.activations + 16 * kMebi + backend->Memory()->workspace_bytes;
  EXPECT_EQ(device_->allocated_bytes(), sum);
}

TEST_F(CudaMemoryTest, APoolWithoutASizeLeavesOnlyAReserve) {
  const std::unique_ptr<Backend> backend = MakeBackend(256 * kMebi);
  const auto engine = Engine::Create({.kv_pool_bytes = std::nullopt}, *model_, *backend);
  ASSERT_TRUE(engine.ok()) << engine.status();

  const std::size_t free = *device_->FreeBytes();
  EXPECT_GE(free, 64 * kMebi);
  EXPECT_LT(free, 64 * kMebi + (*engine)->identity().kv.block_bytes());
}

TEST(MemoryNeeds, SizesReadAsPeopleWriteThem) {
  EXPECT_EQ(BytesText(900), "900 bytes");
  EXPECT_EQ(BytesText(20 * kMebi), "20.0 MiB");
  EXPECT_EQ(BytesText(1536 * kMebi), "1.5 GiB");
}

}  // namespace
}  // namespace baton
