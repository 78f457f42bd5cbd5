#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <utility>

#include "baton/v1/kv.grpc.pb.h"
#include "kvtransfer/grpc_stream/stream.h"
#include "proto/status_conversion.h"

namespace baton::grpc_stream {

// What the reactors of both ends share: reports to the inbox, frames to and from their proto.
// gRPC's threads only report; the transfer thread starts every operation.
template <typename Base>
class StreamReactor : public Base, public Stream {
 public:
  explicit StreamReactor(std::shared_ptr<StreamInbox> inbox) : inbox_(std::move(inbox)) {}

  std::uint64_t number() const { return number_; }

  void Read() override {
    read_.Clear();
    this->StartRead(&read_);
  }
  void Write(Frame frame) override {
    written_.set_header(std::move(frame.header));
    written_.set_payload(std::move(frame.payload));
    written_.set_more_bytes(frame.more_bytes);
    written_.set_crc32c(frame.crc32c);
    this->StartWrite(&written_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Report(StreamEvent::Kind::kReadEnded);
      return;
    }
    inbox_->Put({.stream = number_,
                 .kind = StreamEvent::Kind::kRead,
                 .frame = {.header = std::move(*read_.mutable_header()),
                           .payload = std::move(*read_.mutable_payload()),
                           .more_bytes = read_.more_bytes(),
                           .crc32c = read_.crc32c()}});
  }
  void OnWriteDone(bool ok) override {
    Report(ok ? StreamEvent::Kind::kWritten : StreamEvent::Kind::kWriteFailed);
  }

 protected:
  void Report(StreamEvent::Kind kind, absl::Status status = absl::OkStatus()) {
    inbox_->Put({.stream = number_, .kind = kind, .status = std::move(status)});
  }
  StreamInbox& inbox() { return *inbox_; }

 private:
  const std::shared_ptr<StreamInbox> inbox_;  // shared with the transport, which may end first
  const std::uint64_t number_ = MakeStreamNumber();
  v1::KvFrame read_;
  v1::KvFrame written_;
};

// The side that was connected to. Deletes itself in OnDone.
class AcceptedStream final
    : public StreamReactor<grpc::ServerBidiReactor<v1::KvFrame, v1::KvFrame>> {
 public:
  AcceptedStream(std::shared_ptr<StreamInbox> inbox, grpc::CallbackServerContext& context)
      : StreamReactor(std::move(inbox)), context_(context) {
    this->inbox().Put({.stream = number(), .kind = StreamEvent::Kind::kAccepted, .made = this});
  }

  void Cancel() override { context_.TryCancel(); }
  void Finish() override {
    grpc::ServerBidiReactor<v1::KvFrame, v1::KvFrame>::Finish(grpc::Status::OK);
  }
  void OnCancel() override { Report(StreamEvent::Kind::kCancelled); }
  void OnDone() override {
    Report(StreamEvent::Kind::kDone);
    delete this;
  }

 private:
  grpc::CallbackServerContext& context_;  // the call's: lives until OnDone
};

// The side that connects. Deletes itself in OnDone.
class ConnectedStream final
    : public StreamReactor<grpc::ClientBidiReactor<v1::KvFrame, v1::KvFrame>> {
 public:
  explicit ConnectedStream(std::shared_ptr<StreamInbox> inbox) : StreamReactor(std::move(inbox)) {}

  void Begin(v1::KvTransfer::Stub& stub) {
    stub.async()->Exchange(&context_, this);
    AddHold();  // the transfer thread starts operations, until Finish
    StartCall();
  }

  void Cancel() override { context_.TryCancel(); }
  void Finish() override { RemoveHold(); }
  void OnDone(const grpc::Status& status) override {
    Report(StreamEvent::Kind::kDone, FromGrpcStatus(status));
    delete this;
  }

 private:
  grpc::ClientContext context_;
};

}  // namespace baton::grpc_stream
