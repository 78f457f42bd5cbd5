// Five thousand split requests, some of which leave, on a pool that has room for few of them (T10):
// after each five hundred every block is free in both workers, and nothing has grown.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/faults/fault_fixture.h"

namespace baton {
namespace {

class SoakTest : public FaultTest, public testing::WithParamInterface<bool> {
 protected:
  static constexpr int kPrompts = 40;

  bool PrefixCache() const override { return GetParam(); }
  std::vector<std::string> WorkerFlags() const override { return {"--kv-pool-size", "1MiB"}; }

  static v1::CompleteRequest Request(int number) {
    constexpr std::size_t kShortest = 60;
    const auto seed = static_cast<std::uint64_t>(number % kPrompts);
    return GreedyRequest(TinyPrompt(500 + seed, kShortest + 3 * seed), 6, v1::PATH_DISAGGREGATED);
  }

  // Of both workers.
  std::size_t OpenFiles() {
    return cluster().decode().process().open_files() + cluster().prefill().process().open_files();
  }
};

INSTANTIATE_TEST_SUITE_P(, SoakTest, testing::Bool(), [](const auto& test) {
  return test.param ? "Cached" : "Uncached";
});

TEST_P(SoakTest, FiveThousandRequestsLeaveNothing) {
  constexpr int kRequests = 5000;
  constexpr int kBatch = 500;
  constexpr int kClients = 8;
  std::vector<Tokens> expected;
  for (int i = 0; i < kPrompts; ++i) {
    expected.push_back(Expected(Request(i)));
  }
  std::size_t files = 0;
  for (int first = 0; first < kRequests; first += kBatch) {
    SCOPED_TRACE(absl::StrCat("requests from ", first));
    std::atomic<int> next = first;
    std::vector<std::jthread> clients;
    for (int client = 0; client < kClients; ++client) {
      clients.emplace_back([&] {
        for (int number = next++; number < first + kBatch; number = next++) {
          const auto stream = this->client().Stream(Request(number));
          if (number % 10 == 9) {
            stream->WaitForTokens(1);
            stream->Cancel();
            const absl::Status end = *stream->WaitForEnd();
            EXPECT_TRUE(end.ok() || absl::IsCancelled(end)) << number << ": " << end;
            continue;
          }
          EXPECT_EQ(stream->WaitForEnd(), absl::OkStatus()) << number;
          EXPECT_EQ(stream->tokens(), expected[static_cast<std::size_t>(number % kPrompts)])
              << number;
        }
      });
    }
    clients.clear();  // joins
    ASSERT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
    if (first == 0) {
      files = OpenFiles();
    }
    EXPECT_TRUE(WaitUntil([&] { return OpenFiles() <= files; }, kPatience)) << OpenFiles();
    ASSERT_FALSE(HasFailure());
  }
}

}  // namespace
}  // namespace baton
