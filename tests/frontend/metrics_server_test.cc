#include "frontend/metrics_server.h"

#include <gtest/gtest.h>
#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "tests/support/scrape.h"

namespace baton {
namespace {

// One gauge: how often it has been asked.
class AskedGauge final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override {
    prometheus::MetricFamily family{
        .name = "asked", .help = "Scrapes.", .type = prometheus::MetricType::Gauge};
    family.metric.emplace_back().gauge.value = ++asked_;
    return {family};
  }

 private:
  mutable std::atomic<int> asked_{0};
};

absl::StatusOr<std::unique_ptr<MetricsServer>> StartServer(const std::string& listen,
                                                           const std::string& advertise_host = "") {
  return MetricsServer::Start(listen, advertise_host, std::make_shared<AskedGauge>());
}

double Asked(const MetricsServer& server) {
  const auto samples = Scrape(server.address());
  EXPECT_TRUE(samples.ok()) << samples.status();
  return samples.ok() && samples->contains("asked") ? samples->at("asked") : -1;
}

TEST(MetricsServer, AsksAtEveryScrape) {
  const auto server = StartServer("127.0.0.1:0");
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(Asked(**server), 1);
  EXPECT_EQ(Asked(**server), 2);
}

TEST(MetricsServer, TellsTheRealPortUnderTheAdvertisedHost) {
  const auto plain = StartServer("localhost:0");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_TRUE((*plain)->address().starts_with("localhost:"));
  EXPECT_FALSE((*plain)->address().ends_with(":0"));

  const auto wildcard = StartServer("0.0.0.0:0", "worker-1.example");
  ASSERT_TRUE(wildcard.ok()) << wildcard.status();
  EXPECT_TRUE((*wildcard)->address().starts_with("worker-1.example:"));
  EXPECT_EQ(Asked(**wildcard), 1);
}

TEST(MetricsServer, AnAddressItCannotListenOnIsRefusedByName) {
  const auto server = StartServer("127.0.0.1:0");
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string taken = (*server)->address();
  const absl::Status again = StartServer(taken).status();
  EXPECT_EQ(again.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(again.message()).find(taken), std::string::npos) << again;

  EXPECT_EQ(StartServer("192.0.2.1:0").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(StartServer("[::1]:0").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(StartServer("127.0.0.1:0,127.0.0.2:0").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(MetricsServer, ServesNothingButMetrics) {
  const auto server = StartServer("127.0.0.1:0");
  ASSERT_TRUE(server.ok()) << server.status();
  for (const char* path : {"/", "/etc/passwd", "/../../etc/passwd", "/README.md"}) {
    const auto answer = HttpGet((*server)->address(), path);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_FALSE(answer->starts_with("HTTP/1.1 200")) << path << "\n" << *answer;
  }
}

// As many as the server has threads.
TEST(MetricsServer, SilentConnectionsAreClosed) {
  auto server = StartServer("127.0.0.1:0");
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 2; ++i) {
    auto connection = ConnectLocally((*server)->address());
    ASSERT_TRUE(connection.ok()) << connection.status();
    silent.push_back(*std::move(connection));
  }

  EXPECT_EQ(Asked(**server), 1);  // gives up after ten seconds
}

TEST(MetricsServer, EndsPromptly) {
  auto server = StartServer("127.0.0.1:0");
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(Asked(**server), 1);

  const TimePoint begin = Clock::System().Now();
  server->reset();

  EXPECT_LT(Clock::System().Now() - begin, std::chrono::milliseconds(1500));
}

// F54: many at once, slow ones among them.
TEST(MetricsServer, ScrapesAtOnceAllGetTheirAnswer) {
  const auto server = StartServer("127.0.0.1:0");
  ASSERT_TRUE(server.ok()) << server.status();
  std::atomic<int> answered{0};
  {
    std::vector<std::jthread> scrapers;
    for (int i = 0; i < 8; ++i) {
      scrapers.emplace_back([&] {
        for (int k = 0; k < 25; ++k) {
          answered += Scrape((*server)->address()).ok() ? 1 : 0;
        }
      });
    }
  }
  EXPECT_EQ(answered, 8 * 25);
}

}  // namespace
}  // namespace baton
