#pragma once

#include "baton/v1/worker.grpc.pb.h"
#include "decode_worker/decode_sessions.h"

namespace baton {

// baton.v1.DecodeWorker over the worker's sessions, which must outlive it. Thread-safe.
class DecodeService final : public v1::DecodeWorker::CallbackService {
 public:
  explicit DecodeService(DecodeSessions& sessions) : sessions_(sessions) {}

  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;

 private:
  DecodeSessions& sessions_;
};

}  // namespace baton
