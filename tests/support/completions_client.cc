#include "tests/support/completions_client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <utility>

#include "absl/time/time.h"
#include "common/check.h"
#include "proto/status_conversion.h"
#include "tests/support/health_client.h"

namespace baton {
namespace {

void SetTimeout(grpc::ClientContext& context, Duration timeout) {
  context.set_deadline(std::chrono::system_clock::now() + timeout);
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeTestChannel(const std::string& address, const TlsFiles& tls) {
  constexpr int kFirstReconnectMs = 20;
  constexpr int kLongestReconnectMs = 200;
  constexpr int kConnectMs = 5000;  // what gRPC takes the minimum of the back-off for
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLongestReconnectMs);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials =
      MakeChannelCredentials(tls);
  BATON_CHECK(credentials.ok());
  return grpc::CreateCustomChannel(address, *credentials, arguments);
}

StreamedCompletion::StreamedCompletion(std::shared_ptr<grpc::Channel> channel,
                                       v1::CompleteRequest request,
                                       Duration timeout)
    : stub_(v1::Completions::NewStub(std::move(channel))), request_(std::move(request)) {
  SetTimeout(context_, timeout);
  thread_ = std::jthread([this] { Run(); });
}

StreamedCompletion::~StreamedCompletion() {
  Cancel();
}

void StreamedCompletion::Cancel() {
  context_.TryCancel();
}

void StreamedCompletion::Run() {
  const auto reader = stub_->StreamComplete(&context_, request_);
  v1::CompleteChunk chunk;
  while (reader->Read(&chunk)) {
    absl::MutexLock lock(&mutex_);
    tokens_.insert(tokens_.end(), chunk.choice().token_ids().begin(),
                   chunk.choice().token_ids().end());
    timeline_ = chunk.timeline();
    last_event_ = Clock::System().Now();
  }
  const absl::Status status = FromGrpcStatus(reader->Finish());
  absl::MutexLock lock(&mutex_);
  last_event_ = Clock::System().Now();
  end_ = status;
}

bool StreamedCompletion::WaitForTokens(std::size_t count, Duration patience) {
  absl::MutexLock lock(&mutex_);
  const auto decided = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return tokens_.size() >= count || end_.has_value();
  };
  mutex_.AwaitWithTimeout(absl::Condition(&decided), absl::FromChrono(patience));
  return tokens_.size() >= count;
}

std::optional<absl::Status> StreamedCompletion::WaitForEnd(Duration patience) {
  absl::MutexLock lock(&mutex_);
  const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return end_.has_value(); };
  mutex_.AwaitWithTimeout(absl::Condition(&ended), absl::FromChrono(patience));
  return end_;
}

Tokens StreamedCompletion::tokens() const {
  absl::MutexLock lock(&mutex_);
  return tokens_;
}

v1::Timeline StreamedCompletion::timeline() const {
  absl::MutexLock lock(&mutex_);
  return timeline_;
}

TimePoint StreamedCompletion::last_event() const {
  absl::MutexLock lock(&mutex_);
  return last_event_;
}

absl::StatusOr<v1::CompleteResponse> CompletionsClient::Complete(const v1::CompleteRequest& request,
                                                                 Duration timeout) const {
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  v1::CompleteResponse response;
  const grpc::Status status =
      v1::Completions::NewStub(channel_)->Complete(&context, request, &response);
  if (!status.ok()) {
    return FromGrpcStatus(status);
  }
  return response;
}

std::unique_ptr<StreamedCompletion> CompletionsClient::Stream(v1::CompleteRequest request,
                                                              Duration timeout) const {
  return std::make_unique<StreamedCompletion>(channel_, std::move(request), timeout);
}

absl::Status CompletionsClient::Abort(const std::string& request_id) const {
  grpc::ClientContext context;
  SetTimeout(context, kPatience);
  v1::AbortRequest request;
  request.add_request_ids(request_id);
  google::protobuf::Empty response;
  return FromGrpcStatus(v1::Completions::NewStub(channel_)->Abort(&context, request, &response));
}

bool CompletionsClient::IsServing() const {
  return HealthOf(channel_, "") == "SERVING";
}

Tokens TokensOf(const v1::CompleteResponse& response) {
  const auto& ids = response.choices(0).token_ids();
  return {ids.begin(), ids.end()};
}

}  // namespace baton
