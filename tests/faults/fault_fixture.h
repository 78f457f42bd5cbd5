#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "tests/support/cluster.h"
#include "tests/support/patience.h"
#include "tests/support/reference_engine.h"
#include "tests/support/wait_until.h"

namespace baton {

// Promises of DESIGN.md section 1.
inline constexpr std::chrono::milliseconds kRecoveryBegins = std::chrono::seconds(2);
inline constexpr std::chrono::milliseconds kBlocksFree = std::chrono::seconds(1);
inline constexpr std::chrono::milliseconds kLease = std::chrono::seconds(5);
// From a healed connection to a split request: the longest pause between two tries to connect, or
// after a handoff that failed, and a connection's time.
inline constexpr std::chrono::milliseconds kReconnected = std::chrono::seconds(4);
inline constexpr std::chrono::milliseconds kSuspect = std::chrono::milliseconds(600);

// The model a fault test runs on: tiny and quick, or the real one.
struct FaultModel {
  TestModel model;
  std::size_t long_prompt_tokens = 0;  // takes a worker a second or more
  std::string kv_pool_size;
  std::size_t reference_pool_bytes = 0;
};

// A cluster whose processes a test kills, stops and starts again, and what every answer has to be.
class FaultTest : public testing::Test {
 protected:
  // What a derived class may want otherwise: the real model, more flags, more workers.
  virtual bool OnExampleModel() const { return false; }
  virtual std::vector<std::string> WorkerFlags() const { return {}; }
  virtual std::vector<std::string> RouterFlags() const { return {}; }
  virtual bool PrefixCache() const { return false; }
  virtual int PrefillWorkers() const { return 1; }
  virtual int DecodeWorkers() const { return 1; }
  virtual const TestNetwork* Network() const { return nullptr; }
  virtual std::string FailpointFolder() const { return ""; }

  static void TearDownTestSuite();
  // Starts the reference engine, unless an earlier test of the suite has, and the cluster.
  void SetUp() override;
  void TearDown() override;

  // A prompt that is caught in the middle of its prefill.
  v1::CompleteRequest LongRequest(v1::Path path, std::uint32_t max_tokens = 32) const;
  // Short, and with so many tokens to come that it is caught in the middle of its stream.
  v1::CompleteRequest LongStream(v1::Path path) const;

  // What the single engine makes of it; computed once for all requests that differ in path alone.
  Tokens Expected(const v1::CompleteRequest& request);

  // Waits until `worker` computes a prompt, and has done some of it.
  static bool WaitForPrefillAt(const ServerProcess& worker);
  // Waits until the prefill worker computes a prompt whose blocks are offered.
  bool WaitForHandoff();

  // A long request is answered, rightly, by this path and for this reason.
  void ExpectAnswer(v1::Path path, v1::RouteReason reason);
  // T38, T39: nobody was restarted, every long request is answered rightly, and before long one is
  // split.
  void ExpectSplitSoon();

  static void Print(const std::string& what, TimePoint since);

  Cluster& cluster() { return *cluster_; }
  const CompletionsClient& client() { return cluster_->client(); }

 private:
  struct Reference {
    FaultModel model;
    std::unique_ptr<ReferenceEngine> engine;
    std::map<std::string, Tokens> known;  // by request
  };
  static Reference& ReferenceOf(bool example_model);
  static void StartEngine(Reference& reference, bool example_model);

  std::unique_ptr<Cluster> cluster_;
};

}  // namespace baton
