// Workers that register by themselves.

#include "router/fleet_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "proto/status_conversion.h"
#include "tests/router/fake_worker.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/wait_until.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

// A worker's side of one registration.
class Registration {
 public:
  Registration(v1::Fleet::Stub& stub, v1::WorkerDescription description)
      : description_(std::move(description)), stream_(stub.Register(&context_)) {
    reader_ = std::jthread([this] {
      for (v1::RouterNotice notice; stream_->Read(&notice);) {
        absl::MutexLock lock(&mutex_);
        notices_.push_back(notice);
      }
      absl::MutexLock lock(&mutex_);
      ended_ = true;
    });
    Describe();
  }
  ~Registration() {
    context_.TryCancel();
    reader_.join();
  }

  bool Write(const v1::WorkerReport& report) { return stream_->Write(report); }
  bool Describe() {
    v1::WorkerReport report;
    *report.mutable_description() = description_;
    return Write(report);
  }
  v1::WorkerDescription& description() { return description_; }
  std::vector<v1::RouterNotice> notices() const {
    absl::MutexLock lock(&mutex_);
    return notices_;
  }
  bool AwaitEnd() {
    return WaitUntil([this] {
      absl::MutexLock lock(&mutex_);
      return ended_;
    });
  }
  // After AwaitEnd.
  absl::Status End() { return FromGrpcStatus(stream_->Finish()); }

 private:
  v1::WorkerDescription description_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerReport, v1::RouterNotice>> stream_;
  mutable absl::Mutex mutex_;
  std::vector<v1::RouterNotice> notices_;
  bool ended_ = false;
  std::jthread reader_;
};

class FleetServiceTest : public testing::Test {
 protected:
  static const Checkpoint& Model() {
    static const TinyCheckpoint model;
    return *model;
  }

  void StartRouter(milliseconds forget_after = milliseconds(60'000)) {
    KeepGrpcRunning();
    fleet_ = *Fleet::Create({.model_fingerprint = Model().fingerprint(),
                             .tokenizer_fingerprint = Model().tokenizer().fingerprint(),
                             .dead_after = milliseconds(400),
                             .forget_after = forget_after},
                            index_);
    service_.emplace(*fleet_);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&*service_);
    server_ = builder.BuildAndStart();
    fleet_->Start([this](bool can_serve) { can_serve_ = can_serve; });
    stub_ = v1::Fleet::NewStub(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
  }
  void TearDown() override {
    if (service_.has_value()) {
      service_->EndStreams();
      server_->Shutdown(std::chrono::system_clock::now());
      fleet_.reset();
    }
  }

  static v1::WorkerDescription Describe(v1::Role role, const std::string& address) {
    v1::WorkerDescription description;
    description.set_role(role);
    description.set_address(address);
    description.set_instance_id(std::string(InstanceId::Make().AsBytes()));
    *description.mutable_identity() = ToProto(IdentityOf(Model()));
    return description;
  }
  static v1::WorkerReport Snapshot(std::uint8_t hash) {
    v1::WorkerReport report;
    report.mutable_snapshot()->set_first(true);
    report.mutable_snapshot()->set_last(true);
    report.mutable_snapshot()->set_hashes(std::string(16, static_cast<char>(hash)));
    return report;
  }

  TieredIndex index_{{.most_entries = 1000}};
  std::atomic<bool> can_serve_{false};
  std::unique_ptr<Fleet> fleet_;
  std::optional<FleetService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Fleet::Stub> stub_;
};

TEST_F(FleetServiceTest, AWorkerThatRegistersMayGetRequestsAndIsGoneWithItsStream) {
  StartRouter();
  {
    Registration worker(*stub_, Describe(v1::ROLE_DECODE, "127.0.0.1:9"));
    ASSERT_TRUE(WaitUntil([this] { return can_serve_.load(); }));
    ASSERT_EQ(fleet_->View()->decode.size(), 1u);
    EXPECT_EQ(fleet_->View()->decode[0]->address, "127.0.0.1:9");
    ASSERT_TRUE(WaitUntil([&] { return !worker.notices().empty(); }));
    EXPECT_TRUE(worker.notices()[0].has_accepted());
    worker.Write(Snapshot(1));
    EXPECT_TRUE(WaitUntil([this] { return index_.stats().entries == 1; }));
  }
  EXPECT_TRUE(WaitUntil([this] { return !can_serve_; }));
  EXPECT_EQ(index_.stats().entries, 0u);
  EXPECT_FALSE(fleet_->Status().at(0).alive());
}

TEST_F(FleetServiceTest, AWorkerThatIsGoneForLongIsForgotten) {
  StartRouter(milliseconds(100));
  {
    Registration worker(*stub_, Describe(v1::ROLE_PREFILL, "127.0.0.1:9"));
    ASSERT_TRUE(WaitUntil([this] { return fleet_->Status().size() == 1; }));
  }
  EXPECT_TRUE(WaitUntil([this] { return fleet_->Status().empty(); }));
}

// T54: readable, and no request.
TEST_F(FleetServiceTest, AWorkerOfAnotherModelIsToldTheDifference) {
  StartRouter();
  v1::WorkerDescription other = Describe(v1::ROLE_DECODE, "127.0.0.1:9");
  other.mutable_identity()->mutable_model_fingerprint()->at(0) ^= 1;
  Registration worker(*stub_, other);
  ASSERT_TRUE(WaitUntil([&] { return !worker.notices().empty(); }));
  EXPECT_NE(worker.notices()[0].refused().find("serves another model than the router: model"),
            std::string::npos);
  EXPECT_TRUE(fleet_->View()->decode.empty());

  // It is told again when that changes.
  *worker.description().mutable_identity() = ToProto(IdentityOf(Model()));
  worker.Describe();
  ASSERT_TRUE(WaitUntil([&] { return worker.notices().size() == 2; }));
  EXPECT_TRUE(worker.notices()[1].has_accepted());
}

TEST_F(FleetServiceTest, ReportsThatMakeNoSenseEndTheStream) {
  StartRouter();
  struct Case {
    v1::WorkerReport first;
    std::string message;
  };
  std::vector<Case> cases(5);
  cases[0] = {Snapshot(1), "the first one is no description"};
  cases[1] = {{}, "report: it is empty"};
  *cases[2].first.mutable_description() = Describe(v1::ROLE_ROUTER, "127.0.0.1:9");
  cases[2].message = "description.role: ROLE_ROUTER";
  *cases[3].first.mutable_description() = Describe(v1::ROLE_DECODE, "no address");
  cases[3].message = "description.address: ";
  *cases[4].first.mutable_description() = Describe(v1::ROLE_DECODE, "127.0.0.1:9");
  cases[4].first.mutable_description()->set_instance_id("short");
  cases[4].message = "";  // is refused, but may stay
  for (const Case& test : cases) {
    SCOPED_TRACE(test.message);
    grpc::ClientContext context;
    const auto stream = stub_->Register(&context);
    stream->Write(test.first);
    v1::RouterNotice notice;
    if (test.message.empty()) {
      ASSERT_TRUE(stream->Read(&notice));
      EXPECT_NE(notice.refused().find("instance id"), std::string::npos);
      context.TryCancel();
      continue;
    }
    EXPECT_FALSE(stream->Read(&notice));
    const absl::Status end = FromGrpcStatus(stream->Finish());
    EXPECT_EQ(end.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(end.message()).find(test.message), std::string::npos) << end;
  }
}

// B49, F10: a process that has been replaced at its address, and wakes, does not come back.
TEST_F(FleetServiceTest, TheProcessThatCameLastHasTheAddress) {
  StartRouter();
  Registration first(*stub_, Describe(v1::ROLE_DECODE, "127.0.0.1:9"));
  first.Write(Snapshot(1));
  ASSERT_TRUE(WaitUntil([this] { return index_.stats().entries == 1; }));
  Registration second(*stub_, Describe(v1::ROLE_DECODE, "127.0.0.1:9"));
  ASSERT_TRUE(WaitUntil([&] {
    const auto view = fleet_->View();
    return view->decode.size() == 1 &&
           view->decode[0]->instance.AsBytes() == second.description().instance_id();
  }));
  EXPECT_EQ(index_.stats().entries, 0u);

  first.Describe();
  ASSERT_TRUE(first.AwaitEnd());
  EXPECT_EQ(first.End().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(fleet_->View()->decode.size(), 1u) << "the end of the first changes nothing";
}

// A worker of the static list that registers too: it counts once, and either stream keeps it.
TEST_F(FleetServiceTest, TwoStreamsOfOneWorkerAreOneWorker) {
  StartRouter();
  const v1::WorkerDescription description = Describe(v1::ROLE_DECODE, "127.0.0.1:9");
  Registration first(*stub_, description);
  first.Write(Snapshot(1));
  ASSERT_TRUE(WaitUntil([this] { return index_.stats().entries == 1; }));
  {
    Registration second(*stub_, description);
    second.Write(Snapshot(2));
    ASSERT_TRUE(WaitUntil([&] { return !second.notices().empty(); }));
    EXPECT_EQ(fleet_->Status().size(), 1u);
  }
  // The stream that was followed has ended: the other one is asked for a snapshot.
  const auto asked = [&] {
    for (const v1::RouterNotice& notice : first.notices()) {
      if (notice.has_resync()) {
        return true;
      }
    }
    return false;
  };
  EXPECT_TRUE(WaitUntil(asked));
  first.Describe();
  EXPECT_EQ(fleet_->View()->decode.size(), 1u);
}

TEST_F(FleetServiceTest, AStoppingRouterEndsTheStreams) {
  StartRouter();
  Registration worker(*stub_, Describe(v1::ROLE_DECODE, "127.0.0.1:9"));
  ASSERT_TRUE(WaitUntil([&] { return !worker.notices().empty(); }));
  service_->EndStreams();
  ASSERT_TRUE(worker.AwaitEnd());
  EXPECT_EQ(worker.End().code(), absl::StatusCode::kUnavailable);
  Registration late(*stub_, Describe(v1::ROLE_DECODE, "127.0.0.1:10"));
  ASSERT_TRUE(late.AwaitEnd());
  EXPECT_EQ(late.End().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace baton
