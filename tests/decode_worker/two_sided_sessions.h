#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "decode_worker/decode_sessions.h"
#include "tests/support/scripted_prefill.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/two_workers.h"

namespace baton {

inline void WaitUntilCancelled(const grpc::ServerContext& context) {
  EXPECT_TRUE(WaitUntil([&context] { return context.IsCancelled(); }));
}

// A decode worker's sessions and a real prefill worker, in this process.
class DecodeSessionsTest : public testing::Test {
 protected:
  std::vector<std::uint32_t> Colocated(DecodeJob job) {
    job.prefill.clear();
    const auto observer = decode_.Start(std::move(job));
    EXPECT_TRUE(observer->WaitForEnd().ok());
    return observer->tokens();
  }

  // Passes a call on to the real prefill worker; `each` gets what it says.
  grpc::Status Relay(const v1::PrefillRequest& request,
                     const std::function<void(v1::PrefillEvent&)>& each) {
    const auto stub = v1::PrefillWorker::NewStub(
        grpc::CreateChannel(prefill_.served.address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    const auto reader = stub->Prefill(&context, request);
    v1::PrefillEvent event;
    while (reader->Read(&event)) {
      each(event);
    }
    return reader->Finish();
  }

  void ExpectAllFree() {
    EXPECT_TRUE(AllBlocksFree(*decode_.core));
    EXPECT_TRUE(AllBlocksFree(*prefill_.core));
    // A session goes right after its observer has heard the end, on another thread than ours.
    EXPECT_TRUE(WaitUntil([this] { return decode_.sessions.InFlight() == 0; }));
    EXPECT_TRUE(WaitUntil([this] { return prefill_.service.InFlight() == 0; }));
  }

  void ExpectFreeAfterCancelling(DecodeJob job, std::chrono::milliseconds delay) {
    std::shared_ptr<Generation> generation;
    const auto observer = decode_.Start(std::move(job), &generation);
    const TimePoint until = Clock::System().Now() + delay;
    WaitUntil([until] { return Clock::System().Now() >= until; });
    generation->Cancel();
    EXPECT_EQ(observer->WaitForEnd().code(), absl::StatusCode::kCancelled) << delay.count();
    ExpectAllFree();
  }

  const TinyCheckpoint model_;
  const std::shared_ptr<inproc::Hub> hub_ = inproc::MakeHub();
  PrefillNode prefill_{model_.file(), inproc::MakeTransport(hub_)};
  DecodeNode decode_{
      model_.file(), inproc::MakeTransport(hub_), {.accept = std::chrono::milliseconds(400)}};
};

}  // namespace baton
