#include "worker/worker_flags.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

struct Outcome {
  std::optional<int> code;
  std::string errors;
};

Outcome Parse(v1::Role role, std::vector<const char*> words) {
  WorkerFlags settings;
  Flags flags("baton-test", "A test.");
  AddWorkerFlags(flags, role, settings);
  words.insert(words.begin(), "baton-test");
  testing::internal::CaptureStderr();
  const std::optional<int> code = flags.Parse(static_cast<int>(words.size()), words.data());
  return {code, testing::internal::GetCapturedStderr()};
}

// T53: a KV door that others are told of and do not reach is refused at the start, not found out by
// prompts that are computed twice.
TEST(WorkerFlags, AKvDoorThatNobodyReachesIsRefused) {
  struct Case {
    std::vector<const char*> words;
    const char* named;  // in the message; null: accepted
  };
  const Case cases[] = {
      {{}, nullptr},
      {{"--kv-listen", "nowhere"}, "--kv-listen"},
      {{"--kv-listen", "0.0.0.0:0"}, "--advertise-host"},
      {{"--kv-listen", "[::]:0"}, "--advertise-host"},
      {{"--kv-listen", "0:7000"}, "--advertise-host"},
      {{"--kv-listen", "0.0.0.0:0", "--advertise-host", "10.0.0.1"}, nullptr},
      {{"--kv-listen", "0.0.0.0:0", "--advertise-host", "[::]"}, "--advertise-host"},
      {{"--kv-listen", "10.0.0.1:0"}, nullptr},
      {{"--listen", "10.0.0.1:1"}, nullptr},  // all workers may be here; a warning says it
      {{"--listen", "10.0.0.1:1", "--kv-listen", "localhost:0"}, nullptr},
      {{"--listen", "10.0.0.1:1", "--advertise-host", "10.0.0.1"}, "--kv-listen"},
      {{"--listen", "10.0.0.1:1", "--kv-listen", "10.0.0.1:0"}, nullptr},
      {{"--listen", "0.0.0.0:1", "--advertise-host", "10.0.0.1"}, "--kv-listen"},
      {{"--listen", "0.0.0.0:1", "--advertise-host", "prefill-0"}, "--kv-listen"},
      {{"--listen", "0.0.0.0:1", "--advertise-host", "127.0.0.1"}, nullptr},
      {{"--listen", "0.0.0.0:1", "--kv-listen", "0.0.0.0:2", "--advertise-host", "10.0.0.1"},
       nullptr},
      {{"--listen", "127.0.0.1:1", "--advertise-host", "10.0.0.1", "--kv-transport", "grpc"},
       nullptr},
  };
  for (const Case& one : cases) {
    const Outcome outcome = Parse(v1::ROLE_PREFILL, one.words);
    std::string words;
    for (const char* word : one.words) {
      words += std::string(word) + " ";
    }
    SCOPED_TRACE(words);
    if (one.named == nullptr) {
      EXPECT_EQ(outcome.code, std::nullopt) << outcome.errors;
    } else {
      EXPECT_EQ(outcome.code, 2);
      EXPECT_NE(outcome.errors.find(std::string(one.named) + ": "), std::string::npos)
          << outcome.errors;
    }
  }
}

TEST(WorkerFlags, NobodyComesToTheKvDoorOfADecodeWorker) {
  EXPECT_EQ(Parse(v1::ROLE_DECODE, {"--listen", "0.0.0.0:1", "--advertise-host", "decode-0"}).code,
            std::nullopt);
}

TEST(WorkerFlags, AKvDoorForThisMachineAloneIsKnownAsOne) {
  WorkerFlags settings;
  settings.server.listen = "127.0.0.1:0";
  EXPECT_FALSE(OnlyThisMachineFetches(settings));
  settings.server.listen = "10.0.0.1:0";
  EXPECT_TRUE(OnlyThisMachineFetches(settings));
  settings.kv_listen = "10.0.0.1:0";
  EXPECT_FALSE(OnlyThisMachineFetches(settings));
}

}  // namespace
}  // namespace baton
