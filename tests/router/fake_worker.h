#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/worker.grpc.pb.h"
#include "common/check.h"
#include "common/kv_layout.h"
#include "common/random_id.h"
#include "model/checkpoint.h"
#include "proto/grpc_runtime.h"
#include "proto/identity_conversion.h"

namespace baton {

// The identity of a worker that serves this checkpoint.
inline EngineIdentity IdentityOf(const Checkpoint& checkpoint) {
  EngineIdentity identity;
  identity.model_fingerprint = checkpoint.fingerprint();
  identity.tokenizer_fingerprint = checkpoint.tokenizer().fingerprint();
  identity.kv = {.layers = checkpoint.config().layers,
                 .kv_heads = checkpoint.config().kv_heads,
                 .head_dim = checkpoint.config().head_dim,
                 .element_type = "bf16",
                 .layout_id = "test",
                 .layer_bytes = 64};
  identity.arithmetic = "test";
  identity.rope_base = checkpoint.config().rope_base;
  identity.rms_epsilon = checkpoint.config().rms_epsilon;
  return identity;
}

// The gRPC side of a worker, in this process, on a port of its own. Generate plays what the test
// has put into `script`. Its destruction is the death of the worker.
class FakeWorker {
 public:
  using Script = std::function<grpc::Status(
      const v1::GenerateRequest&, grpc::ServerContext&, grpc::ServerWriter<v1::GenerateEvent>&)>;

  // Port 0: a free one.
  FakeWorker(v1::Role role, const EngineIdentity& identity, int port = 0)
      : worker_(*this), decode_(*this) {
    KeepGrpcRunning();
    description.set_role(role);
    description.set_instance_id(std::string(InstanceId::Make().AsBytes()));
    *description.mutable_identity() = ToProto(identity);
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(&worker_);
    builder.RegisterService(&decode_);
    server_ = builder.BuildAndStart();
    BATON_CHECK(server_ != nullptr);
  }
  ~FakeWorker() {
    {
      absl::MutexLock lock(&mutex_);
      dying_ = true;
    }
    server_->Shutdown(std::chrono::system_clock::now());
  }

  int port() const { return port_; }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  void SetDraining(bool draining) {
    absl::MutexLock lock(&mutex_);
    description.set_draining(draining);
  }
  // Nothing is reported while it is true, as by a stopped process.
  void SetSilent(bool silent) {
    absl::MutexLock lock(&mutex_);
    silent_ = silent;
  }
  // Goes to every router that watches, in order; the first ones follow its description.
  void Report(v1::WorkerReport report) {
    absl::MutexLock lock(&mutex_);
    reports_.push_back(std::move(report));
  }
  // What routers have said.
  std::vector<v1::RouterNotice> notices() const {
    absl::MutexLock lock(&mutex_);
    return notices_;
  }
  std::vector<v1::GenerateRequest> requests() const {
    absl::MutexLock lock(&mutex_);
    return requests_;
  }

  v1::WorkerDescription
      description;  // change it before the router first asks, later through the setters
  Script script;    // set before the first request

  // A script: these tokens, then this end.
  static Script Answer(std::vector<std::uint32_t> tokens, v1::GenerateEvent::Finished finished) {
    return [=](const v1::GenerateRequest&, grpc::ServerContext&,
               grpc::ServerWriter<v1::GenerateEvent>& writer) {
      v1::GenerateEvent event;
      for (const std::uint32_t id : tokens) {
        event.set_token(id);
        writer.Write(event);
      }
      *event.mutable_finished() = finished;
      writer.Write(event);
      return grpc::Status::OK;
    };
  }

 private:
  struct WorkerService final : v1::Worker::Service {
    explicit WorkerService(FakeWorker& o) : owner(o) {}
    using Stream = grpc::ServerReaderWriter<v1::WorkerReport, v1::RouterNotice>;
    grpc::Status Watch(grpc::ServerContext* context, Stream* stream) override {
      std::jthread reader([this, stream] {
        for (v1::RouterNotice notice; stream->Read(&notice);) {
          absl::MutexLock lock(&owner.mutex_);
          owner.notices_.push_back(notice);
        }
      });
      std::size_t told = 0;
      bool alive = true;
      while (alive && !context->IsCancelled()) {
        std::vector<v1::WorkerReport> due;
        {
          absl::MutexLock lock(&owner.mutex_);
          const auto more = [this, &told] {
            return owner.dying_ || (!owner.silent_ && owner.reports_.size() > told);
          };
          owner.mutex_.AwaitWithTimeout(absl::Condition(&more), absl::Milliseconds(20));
          if (owner.dying_) {
            break;
          }
          if (owner.silent_) {
            continue;
          }
          *due.emplace_back().mutable_description() = owner.description;
          due.insert(due.end(), owner.reports_.begin() + static_cast<std::ptrdiff_t>(told),
                     owner.reports_.end());
          told = owner.reports_.size();
        }
        for (const v1::WorkerReport& report : due) {
          alive = alive && stream->Write(report);
        }
      }
      context->TryCancel();  // ends the reader
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the worker dies");
    }
    FakeWorker& owner;
  };

  struct DecodeService final : v1::DecodeWorker::Service {
    explicit DecodeService(FakeWorker& o) : owner(o) {}
    grpc::Status Generate(grpc::ServerContext* context,
                          const v1::GenerateRequest* request,
                          grpc::ServerWriter<v1::GenerateEvent>* writer) override {
      {
        absl::MutexLock lock(&owner.mutex_);
        owner.requests_.push_back(*request);
      }
      return owner.script(*request, *context, *writer);
    }
    FakeWorker& owner;
  };

  mutable absl::Mutex mutex_;
  bool silent_ = false;
  bool dying_ = false;
  std::vector<v1::WorkerReport> reports_;
  std::vector<v1::RouterNotice> notices_;
  std::vector<v1::GenerateRequest> requests_;
  WorkerService worker_;
  DecodeService decode_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace baton
