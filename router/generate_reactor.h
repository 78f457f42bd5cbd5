#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "baton/v1/worker.grpc.pb.h"
#include "common/tls_hint.h"
#include "frontend/generator.h"

namespace baton {

// One DecodeWorker.Generate call and the generation it stands for.
//
// Keeps itself alive from Begin until gRPC is done with it. Cancel is thread-safe; the rest runs on
// gRPC's threads, one reaction at a time.
class GenerateReactor final : public grpc::ClientReadReactor<v1::GenerateEvent>, public Generation {
 public:
  struct Options {
    std::string worker;  // address, for messages and the result
    TlsUse tls;          // of the channel
    v1::RouteReason reason = v1::ROUTE_REASON_UNSPECIFIED;
    Duration route{0};
    std::optional<TimePoint> deadline;
    std::function<void()>
        on_unreachable;  // the call ends UNAVAILABLE; runs before the observer hears of it
  };

  GenerateReactor(v1::GenerateRequest request,
                  Options options,
                  std::shared_ptr<GenerationObserver> observer);

  // `self` is this object.
  void Begin(const std::shared_ptr<grpc::Channel>& channel, std::shared_ptr<GenerateReactor> self);

  void Cancel() override;

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  GenerationResult MakeResult(const v1::GenerateEvent::Finished& finished) const;
  absl::Status MakeError(const grpc::Status& status) const;

  const v1::GenerateRequest request_;
  const Options options_;
  std::shared_ptr<GenerationObserver> observer_;  // null once it has heard the end
  std::unique_ptr<v1::DecodeWorker::Stub> stub_;
  grpc::ClientContext context_;
  v1::GenerateEvent event_;
  bool token_seen_ = false;
  std::atomic<bool> cancelled_{
      false};  // by Cancel, so that a CANCELLED from elsewhere can be told apart
  std::shared_ptr<GenerateReactor> self_;  // null before Begin and after OnDone
};

}  // namespace baton
