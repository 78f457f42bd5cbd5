#include "tests/faults/fault_fixture.h"

#include <cstdio>
#include <utility>

namespace baton {

// The engine lives as long as its suite: the weights of the real model take seconds to load.
FaultTest::Reference& FaultTest::ReferenceOf(bool example_model) {
  static Reference tiny{.model = {.model = TinyModel(),
                                  .long_prompt_tokens = kLongPromptTokens,
                                  .kv_pool_size = "32MiB",
                                  .reference_pool_bytes = 32 << 20}};
  static Reference example{.model = {.long_prompt_tokens = 1500,
                                     .kv_pool_size = "128MiB",
                                     .reference_pool_bytes = 128 << 20}};
  return example_model ? example : tiny;
}

void FaultTest::TearDownTestSuite() {
  for (const bool example_model : {false, true}) {
    ReferenceOf(example_model).engine.reset();
  }
}

void FaultTest::SetUp() {
  Reference& reference = ReferenceOf(OnExampleModel());
  if (reference.engine == nullptr) {
    ASSERT_NO_FATAL_FAILURE(StartEngine(reference, OnExampleModel()));
  }
  // The same prompts are asked again and again: without the prefix cache each is computed, and
  // moved, every time.
  std::vector<std::string> worker_flags = WorkerFlags();
  worker_flags.insert(worker_flags.end(), {"--prefix-cache", PrefixCache() ? "on" : "off"});
  auto cluster = Cluster::Start({.model = reference.model.model,
                                 .kv_pool_size = reference.model.kv_pool_size,
                                 .prefill_workers = PrefillWorkers(),
                                 .worker_flags = std::move(worker_flags),
                                 .router_flags = RouterFlags(),
                                 .decode_workers = DecodeWorkers(),
                                 .failpoint_folder = FailpointFolder(),
                                 .network = Network()});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  cluster_ = *std::move(cluster);
}

void FaultTest::StartEngine(Reference& reference, bool example_model) {
  if (example_model) {
    const absl::StatusOr<TestModel> model = ExampleModel();
    ASSERT_TRUE(model.ok()) << model.status();
    reference.model.model = *model;
  }
  auto engine = ReferenceEngine::Start(reference.model.model, reference.model.reference_pool_bytes);
  ASSERT_TRUE(engine.ok()) << engine.status();
  reference.engine = *std::move(engine);
}

void FaultTest::TearDown() {
  if (HasFailure() && cluster_ != nullptr) {
    constexpr std::size_t kTailBytes = 6000;
    for (ServerProcess* server : {&cluster_->router(), &cluster_->decode(), &cluster_->prefill()}) {
      const std::string log = server->process().ErrorOutput();
      ADD_FAILURE() << server->address() << " wrote:\n"
                    << log.substr(log.size() - std::min(log.size(), kTailBytes));
    }
  }
}

v1::CompleteRequest FaultTest::LongRequest(v1::Path path, std::uint32_t max_tokens) const {
  return GreedyRequest(TinyPrompt(1, ReferenceOf(OnExampleModel()).model.long_prompt_tokens),
                       max_tokens, path);
}

v1::CompleteRequest FaultTest::LongStream(v1::Path path) const {
  constexpr std::size_t kPromptTokens = 600;
  constexpr std::uint32_t kNewTokens = 6000;
  return GreedyRequest(TinyPrompt(2, kPromptTokens), kNewTokens, path);
}

Tokens FaultTest::Expected(const v1::CompleteRequest& request) {
  Reference& reference = ReferenceOf(OnExampleModel());
  v1::CompleteRequest pathless = request;
  pathless.clear_path();
  pathless.clear_request_id();
  const auto [entry, is_new] = reference.known.try_emplace(pathless.SerializeAsString());
  if (is_new) {
    const absl::StatusOr<Tokens> tokens = reference.engine->Generate(pathless);
    EXPECT_TRUE(tokens.ok()) << tokens.status();
    entry->second = tokens.value_or(Tokens{});
  }
  return entry->second;
}

bool FaultTest::WaitForPrefillAt(const ServerProcess& worker) {
  const std::uint64_t before = worker.Load().prefilled_tokens();
  return WaitUntil([&] { return worker.Load().prefilled_tokens() > before; }, kPatience);
}

bool FaultTest::WaitForHandoff() {
  return WaitUntil(
      [this] {
        const v1::EngineLoad load = cluster_->prefill().Load();
        return load.running_sequences() > 0 && load.open_handoffs() > 0 &&
               load.prefilled_tokens() > 0;
      },
      kPatience);
}

void FaultTest::ExpectAnswer(v1::Path path, v1::RouteReason reason) {
  const v1::CompleteRequest request = LongRequest(v1::PATH_UNSPECIFIED);
  const absl::StatusOr<v1::CompleteResponse> response = client().Complete(request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(TokensOf(*response), Expected(request));
  EXPECT_EQ(response->timeline().path(), path);
  EXPECT_EQ(response->timeline().reason(), reason);
}

void FaultTest::ExpectSplitSoon() {
  const v1::CompleteRequest request = LongRequest(v1::PATH_UNSPECIFIED);
  const Tokens expected = Expected(request);
  const TimePoint healed = Clock::System().Now();
  bool split = false;
  while (!split && Clock::System().Now() - healed < Promised(kReconnected)) {
    const absl::StatusOr<v1::CompleteResponse> response = client().Complete(request);
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(TokensOf(*response), expected);
    split = response->timeline().path() == v1::PATH_DISAGGREGATED;
  }
  Print("split again after", healed);
  EXPECT_TRUE(split);
  EXPECT_TRUE(cluster().WaitUntilIdle(Promised(kBlocksFree)));
}

void FaultTest::Print(const std::string& what, TimePoint since) {
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::System().Now() - since);
  std::printf("%s %lld ms\n", what.c_str(), static_cast<long long>(ms.count()));
}

}  // namespace baton
