#include "bench/load_stream.h"

#include <utility>

#include "proto/status_conversion.h"

namespace baton {
namespace {

double Milliseconds(const google::protobuf::Duration& duration) {
  return std::chrono::duration<double, std::milli>(FromProtoDuration(duration)).count();
}

ServerTimes TimesOf(const v1::Timeline& timeline) {
  return {.queue_ms = Milliseconds(timeline.queue()),
          .tokenize_ms = Milliseconds(timeline.tokenize()),
          .route_ms = Milliseconds(timeline.route()),
          .prefill_ms = Milliseconds(timeline.prefill()),
          .transfer_ms = Milliseconds(timeline.transfer()),
          .exposed_transfer_ms = Milliseconds(timeline.exposed_transfer()),
          .first_token_ms = Milliseconds(timeline.time_to_first_token())};
}

}  // namespace

LoadStream::LoadStream(v1::CompleteRequest request,
                       TimePoint start,
                       RequestRecord& record,
                       std::function<void()> ended)
    : request_(std::move(request)), start_(start), record_(record), ended_(std::move(ended)) {}

void LoadStream::Start(v1::Completions::Stub& stub, Duration timeout) {
  context_.set_deadline(std::chrono::system_clock::now() + timeout);
  stub.async()->StreamComplete(&context_, &request_, this);
  StartRead(&chunk_);
  record_.sent = Clock::System().Now() - start_;
  StartCall();
}

void LoadStream::OnReadDone(bool ok) {
  const Duration now = Clock::System().Now() - start_;
  if (ok) {
    Note(chunk_, now);
    StartRead(&chunk_);
  }
}

void LoadStream::Note(const v1::CompleteChunk& chunk, Duration now) {
  record_.token_times.insert(record_.token_times.end(),
                             static_cast<std::size_t>(chunk.choice().token_ids_size()), now);
  if (chunk.has_usage()) {
    record_.cached_prompt_tokens = chunk.usage().cached_prompt_tokens();
  }
  if (chunk.has_timeline()) {
    const v1::Timeline& timeline = chunk.timeline();
    record_.path = timeline.path();
    record_.reason = timeline.reason();
    record_.transport = timeline.transport();
    record_.decode_worker = timeline.decode_worker();
    record_.server = TimesOf(timeline);
  }
}

void LoadStream::OnDone(const grpc::Status& status) {
  record_.ended = Clock::System().Now() - start_;
  record_.status = FromGrpcStatus(status);
  ended_();
  delete this;
}

}  // namespace baton
