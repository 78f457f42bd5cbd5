#pragma once

#include <grpcpp/server.h>

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "baton/v1/completions.pb.h"
#include "decode_worker/decode_sessions.h"
#include "decode_worker/prefill_client.h"
#include "frontend/request_validation.h"
#include "prefill_worker/prefill_service.h"
#include "tests/support/prompts.h"
#include "tests/support/test_models.h"
#include "worker/worker_core.h"

namespace baton {

// A prefill and a decode worker in the test's own process, joined by a transport of the test's
// choice. Control calls go over gRPC on the loopback interface, as between real workers.
// Thread-safe.
class InProcessPair {
 public:
  struct Transports {
    TransportFactory prefill;
    TransportFactory decode;
  };
  static absl::StatusOr<std::unique_ptr<InProcessPair>> Start(const TestModel& model,
                                                              Transports transports,
                                                              std::size_t kv_pool_bytes = 32 << 20);
  ~InProcessPair();

  struct Outcome {
    Tokens tokens;
    v1::GenerateEvent::Finished finished;
  };
  // Splits the request whatever its length; `forced` decides what happens when that fails. Blocks
  // until it has ended.
  absl::StatusOr<Outcome> Generate(const v1::CompleteRequest& request, bool forced = true);

  // Nothing runs and every block is free.
  bool IsIdle() const;

  WorkerCore& prefill() { return *prefill_; }
  WorkerCore& decode() { return *decode_; }

 private:
  InProcessPair() = default;

  // Destroyed from the last to the first: what feeds goes before what is fed.
  std::unique_ptr<WorkerCore> prefill_;
  std::unique_ptr<WorkerCore> decode_;
  std::unique_ptr<RequestValidator> validator_;
  std::unique_ptr<PrefillService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  std::unique_ptr<PrefillClient> client_;
  std::unique_ptr<DecodeSessions> sessions_;
};

}  // namespace baton
