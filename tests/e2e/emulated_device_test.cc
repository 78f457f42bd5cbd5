// The three programs with --device emulated: CUDA kernels on this processor, pools in device
// memory, blocks staged through pinned memory and sent by UCX.

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/backends.h"
#include "tests/support/cluster.h"
#include "tests/support/prompts.h"

namespace baton {
namespace {

constexpr std::uint32_t kNewTokens = 8;
constexpr Duration kLongest = std::chrono::minutes(2);

class EmulatedDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto chosen = CreateBackend({.device = "emulated"}); !chosen.ok()) {
      GTEST_SKIP() << chosen.status();
    }
  }
};

TEST_F(EmulatedDevice, ARequestGetsTheSameTokensOnBothPaths) {
  auto started = Cluster::Start({.kv_pool_size = "8MiB", .worker_flags = {"--device", "emulated"}});
  ASSERT_TRUE(started.ok()) << started.status();
  Cluster& cluster = **started;
  std::vector<Tokens> answers;
  for (const std::size_t count : {1u, 16u, 17u, 100u, 300u}) {
    SCOPED_TRACE(count);
    const Tokens prompt = TinyPrompt(count, count);
    const auto split = cluster.client().Complete(
        GreedyRequest(prompt, kNewTokens, v1::PATH_DISAGGREGATED), kLongest);
    ASSERT_TRUE(split.ok()) << split.status();
    const auto whole =
        cluster.client().Complete(GreedyRequest(prompt, kNewTokens, v1::PATH_COLOCATED), kLongest);
    ASSERT_TRUE(whole.ok()) << whole.status();

    EXPECT_EQ(TokensOf(*split), TokensOf(*whole));
    EXPECT_EQ(TokensOf(*split).size(), kNewTokens);
    EXPECT_EQ(split->timeline().path(), v1::PATH_DISAGGREGATED);
    EXPECT_EQ(split->timeline().transport(), "tcp");
    answers.push_back(TokensOf(*split));
  }
  EXPECT_NE(answers.front(), answers.back()) << "a model that answers everything alike";
  const absl::StatusOr<v1::WorkerDescription> description = cluster.decode().Describe();
  ASSERT_TRUE(description.ok()) << description.status();
  EXPECT_EQ(description->identity().arithmetic(), "cuda-emulated");
  EXPECT_TRUE(cluster.WaitUntilIdle());
}

// Whoever runs it must see at once what it is.
TEST_F(EmulatedDevice, TheLogSaysThatItIsAnEmulation) {
  const TestModel& model = TinyModel();
  std::vector<std::string> flags = model.Flags();
  flags.insert(flags.end(), {"--kv-pool-size", "4MiB", "--device", "emulated"});
  ServerProcess worker("decode", flags);
  ASSERT_TRUE(worker.Start().ok());

  worker.process().Kill();
  const std::string log = worker.process().ErrorOutput();
  EXPECT_NE(log.find("device.chosen"), std::string::npos) << log;
  EXPECT_NE(log.find("stand-in for cuBLASLt"), std::string::npos) << log;
}

// Without --kv-pool-size a device's pool is what is free.
TEST_F(EmulatedDevice, ThePoolIsWhatIsFree) {
  const TestModel& model = TinyModel();
  std::vector<std::string> flags = model.Flags();
  flags.insert(flags.end(), {"--device", "emulated"});
  ServerProcess worker("decode", flags);
  ASSERT_TRUE(worker.Start().ok());

  const absl::StatusOr<v1::WorkerDescription> description = worker.Describe();
  ASSERT_TRUE(description.ok()) << description.status();
  // The emulated device has 1 GiB; a block of the tiny model is 8 KiB.
  const std::uint32_t gibi_blocks = (1u << 30) / (8u << 10);
  EXPECT_LT(description->load().total_blocks(), gibi_blocks);
  EXPECT_GT(description->load().total_blocks(), gibi_blocks / 4 * 3);
}

// A device that is not there is not replaced by another.
TEST_F(EmulatedDevice, CudaWithoutAGpuRefusesToStart) {
  const TestModel& model = TinyModel();
  std::vector<std::string> flags = model.Flags();
  flags.insert(flags.end(), {"--kv-pool-size", "4MiB", "--device", "cuda"});
  ServerProcess worker("prefill", flags);
  const absl::Status started = worker.Start();
  if (started.ok()) {
    GTEST_SKIP() << "this machine has a GPU";
  }
  const std::optional<ProcessEnd> end = worker.process().WaitForEnd(kPatience);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->code, 1);
  EXPECT_NE(worker.process().ErrorOutput().find("device cuda: "), std::string::npos)
      << worker.process().ErrorOutput();
}

}  // namespace
}  // namespace baton
