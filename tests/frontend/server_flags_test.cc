#include "frontend/server_flags.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

struct Outcome {
  std::optional<int> code;
  std::string errors;
  ServerFlags settings;
};

Outcome Parse(ServerKind kind, std::vector<const char*> words) {
  Outcome outcome;
  Flags flags("baton-test", "A test.");
  AddServerFlags(flags, kind, outcome.settings);
  words.insert(words.begin(), "baton-test");
  testing::internal::CaptureStderr();
  outcome.code = flags.Parse(static_cast<int>(words.size()), words.data());
  outcome.errors = testing::internal::GetCapturedStderr();
  return outcome;
}

TEST(ServerFlags, DefaultsAreThoseOfTheKind) {
  EXPECT_EQ(Parse(ServerKind::kRouter, {}).settings.listen, "127.0.0.1:8000");
  EXPECT_EQ(Parse(ServerKind::kWorker, {}).settings.listen, "127.0.0.1:0");
  EXPECT_EQ(Parse(ServerKind::kWorker, {}).code, std::nullopt);
}

// B60: what readiness means is said where the door is.
TEST(ServerFlags, HelpSaysWhenAServerIsServing) {
  for (const auto& [kind, words] : {std::pair(ServerKind::kRouter, "some decode worker"),
                                    std::pair(ServerKind::kWorker, "the loaded model")}) {
    testing::internal::CaptureStdout();
    EXPECT_EQ(Parse(kind, {"--help"}).code, 0);
    const std::string help = testing::internal::GetCapturedStdout();
    EXPECT_NE(help.find("SERVING"), std::string::npos) << help;
    EXPECT_NE(help.find(words), std::string::npos) << help;
  }
}

TEST(ServerFlags, FlagsOfLaterVersionsAreRefusedNotIgnored) {
  const Outcome outcome = Parse(ServerKind::kRouter, {"--http-listen", "x"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.errors.find("--http-listen"), std::string::npos) << outcome.errors;
}

TEST(ServerFlags, EveryServerShowsWhatItDoes) {
  for (const ServerKind kind : {ServerKind::kRouter, ServerKind::kWorker}) {
    const Outcome outcome = Parse(kind, {"--metrics-listen", "127.0.0.1:0", "--trace-file",
                                         "steps.json", "--zone", "eu", "--channelz"});
    EXPECT_EQ(outcome.code, std::nullopt) << outcome.errors;
    EXPECT_EQ(outcome.settings.metrics_listen, "127.0.0.1:0");
    EXPECT_EQ(outcome.settings.trace_file, "steps.json");
    EXPECT_EQ(outcome.settings.zone, "eu");
    EXPECT_TRUE(MakeGrpcServerOptions(outcome.settings, "x").channelz);
    EXPECT_EQ(Parse(kind, {"--metrics-listen", "9090"}).code, 2);
    EXPECT_FALSE(Parse(kind, {}).settings.channelz);
  }
  const std::string zone(129, 'z');
  const Outcome long_zone = Parse(ServerKind::kWorker, {"--zone", zone.c_str()});
  EXPECT_EQ(long_zone.code, 2);
  EXPECT_NE(long_zone.errors.find("--zone"), std::string::npos) << long_zone.errors;
}

// T53.
TEST(ServerFlags, AWildcardWorkerMustSayWhereItIsReached) {
  for (const char* listen : {"0.0.0.0:1", "[::]:1"}) {
    const Outcome outcome = Parse(ServerKind::kWorker, {"--listen", listen});
    EXPECT_EQ(outcome.code, 2) << listen;
    EXPECT_NE(outcome.errors.find("--advertise-host"), std::string::npos);
    EXPECT_EQ(Parse(ServerKind::kWorker, {"--listen", listen, "--advertise-host", "10.0.0.1"}).code,
              std::nullopt);
  }
  EXPECT_EQ(Parse(ServerKind::kWorker, {"--advertise-host", "0.0.0.0"}).code, 2);
  EXPECT_EQ(Parse(ServerKind::kRouter, {"--listen", "0.0.0.0:1"}).code, std::nullopt);
}

TEST(ServerFlags, MalformedValuesAreRefused) {
  EXPECT_EQ(Parse(ServerKind::kWorker, {"--listen", "nowhere"}).code, 2);
  EXPECT_EQ(Parse(ServerKind::kWorker, {"--drain-grace-ms", "-1"}).code, 2);
  EXPECT_EQ(Parse(ServerKind::kWorker, {"--tls-key", "x"}).code, 2);
  EXPECT_EQ(Parse(ServerKind::kWorker, {"--log-level", "loud"}).code, 2);
}

TEST(ServerFlags, BecomeOptions) {
  const Outcome outcome =
      Parse(ServerKind::kWorker, {"--listen", "127.0.0.1:7", "--drain-grace-ms", "5", "--log-level",
                                  "warn", "--log-format", "json"});
  const GrpcServerOptions server = MakeGrpcServerOptions(outcome.settings, "decode");
  EXPECT_EQ(server.role, "decode");
  EXPECT_EQ(server.listen, "127.0.0.1:7");
  EXPECT_EQ(server.drain_grace, std::chrono::milliseconds(5));
  const LogOptions log = MakeLogOptions(outcome.settings, "decode");
  EXPECT_EQ(log.level, LogLevel::kWarn);
  EXPECT_EQ(log.format, LogFormat::kJson);
}

}  // namespace
}  // namespace baton
