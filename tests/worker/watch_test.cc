// Worker.Watch, over the engine that it tells of.
#include <gtest/gtest.h>

#include "proto/peer_channel.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/two_workers.h"
#include "tests/worker/reported_worker.h"
#include "worker/worker_service.h"

namespace baton {
namespace {

// A router that has the worker on its list: reads the stream in a thread of its own.
class Watcher {
 public:
  explicit Watcher(const std::string& address)
      : stub_(v1::Worker::NewStub(grpc::CreateCustomChannel(
            address, grpc::InsecureChannelCredentials(), PeerChannelArguments()))),
        stream_(stub_->Watch(&context_)),
        thread_([this] { Run(); }) {}
  ~Watcher() { context_.TryCancel(); }

  void AskSnapshot() {
    v1::RouterNotice notice;
    notice.mutable_resync();
    stream_->Write(notice);
  }
  // Ends its side of the stream.
  void Leave() { stream_->WritesDone(); }
  ReportedWorker worker() const {
    absl::MutexLock lock(&mutex_);
    return worker_;
  }
  // nullopt while it is open.
  std::optional<grpc::StatusCode> end() const {
    absl::MutexLock lock(&mutex_);
    return end_;
  }

 private:
  void Run() {
    v1::WorkerReport report;
    while (stream_->Read(&report)) {
      absl::MutexLock lock(&mutex_);
      worker_.Take(report);
    }
    const grpc::Status status = stream_->Finish();
    absl::MutexLock lock(&mutex_);
    end_ = status.error_code();
  }

  const std::unique_ptr<v1::Worker::Stub> stub_;
  grpc::ClientContext context_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::RouterNotice, v1::WorkerReport>> stream_;
  mutable absl::Mutex mutex_;
  ReportedWorker worker_ ABSL_GUARDED_BY(mutex_);
  std::optional<grpc::StatusCode> end_ ABSL_GUARDED_BY(mutex_);
  std::jthread thread_;  // last: it uses all of the above
};

class WatchTest : public testing::Test {
 protected:
  void Run(int prompt_tokens, std::uint64_t seed) {
    EXPECT_TRUE(node_.Start(MakeJob(prompt_tokens, 4, seed))->WaitForEnd().ok());
  }
  // Of a job that Run has run.
  std::set<std::string> BlocksOf(int prompt_tokens, std::uint64_t seed) const {
    const DecodeJob job = MakeJob(prompt_tokens, 4, seed);
    std::vector<TokenId> tokens;
    for (const std::uint32_t id : job.sequence.prompt()) {
      tokens.emplace_back(id);
    }
    const EngineIdentity& identity = node_.core->engine().identity();
    std::set<std::string> blocks;
    for (const PrefixHash& hash :
         HashBlocks(RootHash({.model_fingerprint = identity.model_fingerprint,
         .tokenizer_fingerprint = identity.tokenizer_fingerprint}),
                    tokens)) {
      blocks.emplace(reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size());
    }
    return blocks;
  }

  const TinyCheckpoint model_;
  DecodeNode node_{model_.file(),
                   inproc::MakeTransport(inproc::MakeHub()),
                   {},
                   EngineOptions{.kv_pool_bytes = kTestPoolBytes}};
  WorkerService service_{*node_.core};
  ServedService served_{&service_};
};

TEST_F(WatchTest, TellsOfTheBlocksThatAPromptLeaves) {
  node_.core->SetAddress("worker.test:1");
  Run(40, 1);
  Watcher early(served_.address());
  const std::set<std::string> first = BlocksOf(40, 1);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_TRUE(WaitUntil([&] { return early.worker().held() == first; }));
  Run(64, 2);
  std::set<std::string> both = BlocksOf(64, 2);
  both.insert(first.begin(), first.end());
  EXPECT_TRUE(WaitUntil([&] { return early.worker().held() == both; }));
  EXPECT_EQ(early.worker().snapshots(), 1);
  const v1::WorkerDescription description = early.worker().description();
  EXPECT_EQ(description.address(), "worker.test:1");
  EXPECT_EQ(description.role(), v1::ROLE_DECODE);
  EXPECT_EQ(description.max_batch_tokens(), 256u);
  EXPECT_EQ(description.max_sequences(), 64u);
  Watcher late(served_.address());
  EXPECT_TRUE(WaitUntil([&] { return late.worker().held() == both; }));
  early.AskSnapshot();
  EXPECT_TRUE(WaitUntil([&] { return early.worker().snapshots() == 2; }));
}

TEST_F(WatchTest, DrainingIsToldBeforeWorkIsRefused) {
  const Watcher watcher(served_.address());
  ASSERT_TRUE(WaitUntil([&] { return watcher.worker().has_snapshot(); }));
  EXPECT_FALSE(watcher.worker().description().draining());
  node_.sessions.StopIntake();
  EXPECT_TRUE(WaitUntil([&] { return watcher.worker().description().draining(); }));
  EXPECT_EQ(node_.Start(MakeJob(8, 1))->WaitForEnd().code(), absl::StatusCode::kUnavailable);
}

TEST_F(WatchTest, EndsWhenEitherSideWantsIt) {
  Watcher leaves(served_.address());
  Watcher stays(served_.address());
  leaves.Leave();
  EXPECT_TRUE(WaitUntil([&] { return leaves.end() == grpc::StatusCode::OK; }));
  EXPECT_FALSE(stays.end().has_value());
  node_.core->reports().EndStreams();
  EXPECT_TRUE(WaitUntil([&] { return stays.end() == grpc::StatusCode::OK; }));
}

// Residency: a worker without a zone takes nothing that must stay in one.
TEST_F(WatchTest, RequestsOfAnotherZoneAreRefused) {
  DecodeJob job = MakeJob(8, 1);
  job.sequence.set_zone("eu");
  const absl::Status status = node_.Start(std::move(job))->WaitForEnd();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(status.message().find("\"eu\""), std::string::npos) << status;
}

}  // namespace
}  // namespace baton
