// A completion server that computes nothing and gives each token at a known time (fake_delays.h).
//
//   fake-completions FIRST_LOW_US FIRST_HIGH_US GAP_LOW_US GAP_HIGH_US
//
// Says `ready fake grpc=host:port`, and ends with SIGTERM or its parent. A request with the path
// COLOCATED is refused with UNAVAILABLE after its first token.
#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "baton/v1/completions.grpc.pb.h"
#include "frontend/timer_thread.h"
#include "tests/bench/fake_delays.h"

namespace baton {
namespace {

// Gives one token after the other; one timer or one write is under way at any time. Deletes itself
// when the call is done.
class FakeReactor final : public grpc::ServerWriteReactor<v1::CompleteChunk> {
 public:
  FakeReactor(TimerThread& timer, const v1::CompleteRequest& request, const FakeDelayRange& range)
      : timer_(timer),
        arrival_(Clock::System().Now()),
        fails_(request.path() == v1::PATH_COLOCATED),
        prompt_tokens_(request.tokens().ids_size()),
        times_(FakeTokenTimes({request.tokens().ids().begin(), request.tokens().ids().end()},
                              static_cast<int>(request.max_tokens()),
                              range)) {
    Await();
  }

 private:
  void Await() {
    timer_.Schedule(arrival_ + times_[given_], [this] { Give(); });
  }

  void Give() {
    ++given_;
    chunk_.mutable_choice()->clear_token_ids();
    chunk_.mutable_choice()->add_token_ids(7);
    if (given_ == times_.size()) {
      chunk_.mutable_choice()->set_finish_reason(v1::FINISH_REASON_LENGTH);
      chunk_.mutable_usage()->set_prompt_tokens(static_cast<std::uint32_t>(prompt_tokens_));
      chunk_.mutable_timeline()->set_path(v1::PATH_DISAGGREGATED);
      chunk_.mutable_timeline()->mutable_prefill()->set_nanos(1'500'000);
    }
    StartWrite(&chunk_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok || given_ == times_.size()) {
      Finish(grpc::Status::OK);
    } else if (fails_) {
      Finish({grpc::StatusCode::UNAVAILABLE, "as asked"});
    } else {
      Await();
    }
  }

  void OnDone() override { delete this; }

  TimerThread& timer_;  // the service's
  const TimePoint arrival_;
  const bool fails_;
  const int prompt_tokens_;
  const std::vector<Duration> times_;
  std::size_t given_ = 0;
  v1::CompleteChunk chunk_;
};

// Thread-safe.
class FakeCompletions final : public v1::Completions::CallbackService {
 public:
  explicit FakeCompletions(const FakeDelayRange& range) : range_(range) {}

  grpc::ServerWriteReactor<v1::CompleteChunk>* StreamComplete(
      grpc::CallbackServerContext* /*context*/, const v1::CompleteRequest* request) override {
    return new FakeReactor(timer_, *request, range_);
  }

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* /*request*/,
                                       v1::ListModelsResponse* response) override {
    v1::Model& model = *response->add_models();
    model.set_name("fake");
    model.set_context_tokens(8192);
    model.set_vocabulary_size(50'000);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const FakeDelayRange range_;
  TimerThread timer_;
};

int Serve(const FakeDelayRange& range) {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  FakeCompletions service(range);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    return 1;
  }
  std::printf("ready fake grpc=127.0.0.1:%d\n", port);
  std::fflush(stdout);
  int signal = 0;
  sigwait(&ends, &signal);
  server->Shutdown(std::chrono::system_clock::now());
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fputs("fake-completions: four delays in microseconds are needed\n", stderr);
    return 2;
  }
  const auto delay = [argv](int i) { return std::chrono::microseconds(std::atoi(argv[i])); };
  return baton::Serve(
      {.first_low = delay(1), .first_high = delay(2), .gap_low = delay(3), .gap_high = delay(4)});
}
