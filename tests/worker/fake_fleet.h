#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/worker.grpc.pb.h"
#include "common/check.h"
#include "proto/grpc_runtime.h"
#include "proto/tls_credentials.h"
#include "tests/worker/reported_worker.h"

namespace baton {

// The Fleet service of a router, in this process: keeps what each stream has told it. Its
// destruction is the death of the router.
class FakeFleet {
 public:
  // Port 0: a free one. Not empty `refusal`: what every worker is told instead of "accepted".
  explicit FakeFleet(int port = 0, std::string refusal = "", const TlsFiles& tls = {})
      : refusal_(std::move(refusal)), service_(*this) {
    KeepGrpcRunning();
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    const absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> credentials =
        MakeServerCredentials(tls);
    BATON_CHECK(credentials.ok());
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), *credentials, &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    BATON_CHECK(server_ != nullptr);
  }
  ~FakeFleet() { server_->Shutdown(std::chrono::system_clock::now()); }

  int port() const { return port_; }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  // What the stream opened last has told; empty when none is open.
  ReportedWorker worker() const {
    absl::MutexLock lock(&mutex_);
    return streams_.empty() ? ReportedWorker() : streams_.rbegin()->second.worker;
  }
  int open() const {
    absl::MutexLock lock(&mutex_);
    return static_cast<int>(streams_.size());
  }
  // Some description of some stream has said so.
  bool said_draining() const {
    absl::MutexLock lock(&mutex_);
    return said_draining_;
  }
  int opened() const {
    absl::MutexLock lock(&mutex_);
    return opened_;
  }
  // To every open stream.
  void Send(const v1::RouterNotice& notice) {
    absl::MutexLock lock(&mutex_);
    for (auto& [number, stream] : streams_) {
      stream.writer->Write(notice);
    }
  }
  void AskSnapshot() {
    v1::RouterNotice notice;
    notice.mutable_resync();
    Send(notice);
  }

 private:
  using Writer = grpc::ServerReaderWriter<v1::RouterNotice, v1::WorkerReport>;
  struct Stream {
    Writer* writer = nullptr;
    ReportedWorker worker;
  };
  struct Service final : v1::Fleet::Service {
    explicit Service(FakeFleet& o) : owner(o) {}
    grpc::Status Register(grpc::ServerContext*, Writer* writer) override {
      return owner.Serve(*writer);
    }
    FakeFleet& owner;
  };

  grpc::Status Serve(Writer& writer) {
    int number = 0;
    {
      absl::MutexLock lock(&mutex_);
      number = ++opened_;
      streams_[number].writer = &writer;
      v1::RouterNotice notice;
      if (refusal_.empty()) {
        notice.mutable_accepted();
      } else {
        notice.set_refused(refusal_);
      }
      writer.Write(notice);
    }
    v1::WorkerReport report;
    while (writer.Read(&report)) {
      absl::MutexLock lock(&mutex_);
      streams_[number].worker.Take(report);
      said_draining_ = said_draining_ || report.description().draining();
    }
    absl::MutexLock lock(&mutex_);
    streams_.erase(number);
    return grpc::Status::OK;
  }

  const std::string refusal_;
  mutable absl::Mutex mutex_;
  std::map<int, Stream> streams_ ABSL_GUARDED_BY(mutex_);  // open ones, by number
  int opened_ ABSL_GUARDED_BY(mutex_) = 0;
  bool said_draining_ ABSL_GUARDED_BY(mutex_) = false;
  Service service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace baton
