#include "worker/rate_meter.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

namespace baton {
namespace {

constexpr int kPrompts = 8;
constexpr int kSteps = 64;
constexpr std::size_t kLeastTransfers = 3;
constexpr std::size_t kMostTransports = 8;
// Fixed and proportional part can be told apart when sizes differ by this factor.
constexpr double kSizeSpread = 2;

double Seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// 0 for 0 and 1, 1 for 2 and 3, 2 for 4 to 7, ...; at most `most`.
std::size_t PowerOfTwo(double value, std::size_t most) {
  const auto whole = static_cast<std::uint64_t>(std::max(value, 1.0));
  return std::min(static_cast<std::size_t>(std::bit_width(whole)) - 1, most);
}

}  // namespace

void MovingMean::Add(double value, int memory) {
  count_ = std::min(count_ + 1, memory);
  value_ += (value - value_) / count_;
}

void RateMeter::OnStep(const StepStatistics& step) {
  absl::MutexLock lock(&mutex_);
  FollowPrompt(step);
  AddDecodeStep(step);
}

void RateMeter::FollowPrompt(const StepStatistics& step) {
  if (step.prefill_rows == 0) {
    run_.reset();  // done, cancelled or waiting for blocks
    return;
  }
  if (!run_.has_value()) {
    run_ = {.start = step.start};
  }
  run_->rows += step.prefill_rows;
  run_->counts = run_->counts && step.decode_rows == 0 && step.cached_tokens == 0 &&
                 step.preempted == 0 && step.prefilled_tokens == step.prefill_rows;
  if (step.sampled_tokens == 0) {
    return;
  }
  // All rows of the run were those of the one prompt whose first token this is.
  const bool alone = step.sampled_tokens == 1 && step.prompt_tokens == run_->rows;
  if (run_->counts && alone && std::exchange(prefill_warm_, true)) {
    const double tokens = step.prompt_tokens;
    PrefillMean& mean = prefill_[PowerOfTwo(tokens, kLengths - 1)];
    mean.tokens.Add(tokens, kPrompts);
    mean.seconds.Add(Seconds(step.start + step.duration - run_->start), kPrompts);
  }
  if (alone) {
    run_.reset();
  } else {
    run_->counts = false;  // until a step without a prompt: others are in the middle of theirs
  }
}

void RateMeter::AddDecodeStep(const StepStatistics& step) {
  const bool counts = step.prefill_rows == 0 && step.decode_rows > 0 &&
                      step.decode_sequences == step.decode_rows &&
                      step.sampled_tokens == step.decode_rows && step.preempted == 0;
  if (!counts || !std::exchange(decode_warm_, true)) {
    return;
  }
  const double batch = step.decode_sequences;
  const double depth = static_cast<double>(step.decode_context_tokens) / batch;
  DecodeMean& mean = decode_[PowerOfTwo(batch, kBatches - 1)][PowerOfTwo(depth, kLengths - 1)];
  mean.batch.Add(batch, kSteps);
  mean.depth.Add(depth, kSteps);
  mean.seconds.Add(Seconds(step.duration), kSteps);
}

void RateMeter::OnLanded(const FetchStats& fetch) {
  const double seconds = Seconds(fetch.receiving);
  if (fetch.moves > 0 || fetch.bytes == 0 || seconds <= 0 || fetch.transport == "grpc" ||
      fetch.transport == "inproc") {
    return;
  }
  absl::MutexLock lock(&mutex_);
  auto transport = std::ranges::find(transports_, fetch.transport, &Transport::name);
  if (transport == transports_.end()) {
    if (transports_.size() == kMostTransports) {
      return;
    }
    transports_.push_back({.name = fetch.transport});
    transport = transports_.end() - 1;
  }
  const Transfer transfer{.bytes = static_cast<double>(fetch.bytes), .seconds = seconds};
  if (transport->transfers.size() < kTransfers) {
    transport->transfers.push_back(transfer);
  } else {
    transport->transfers[transport->next] = transfer;
    transport->next = (transport->next + 1) % kTransfers;
  }
}

v1::WorkerRates RateMeter::rates() const {
  absl::MutexLock lock(&mutex_);
  v1::WorkerRates rates;
  for (const PrefillMean& mean : prefill_) {
    if (mean.seconds.value() > 0) {
      v1::WorkerRates::PrefillRate& rate = *rates.add_prefill();
      rate.set_prompt_tokens(mean.tokens.value());
      rate.set_tokens_per_second(mean.tokens.value() / mean.seconds.value());
    }
  }
  for (const auto& of_batch : decode_) {
    for (const DecodeMean& mean : of_batch) {
      if (mean.seconds.value() > 0) {
        v1::WorkerRates::DecodeStep& rate = *rates.add_decode();
        rate.set_batch(mean.batch.value());
        rate.set_depth_tokens(mean.depth.value());
        rate.set_step_seconds(mean.seconds.value());
      }
    }
  }
  for (const Transport& transport : transports_) {
    if (transport.transfers.size() >= kLeastTransfers) {
      *rates.add_transports() = Fit(transport);
    }
  }
  return rates;
}

// seconds = fixed + bytes / rate by least squares of relative errors, neither part below 0.
v1::WorkerRates::TransportRate RateMeter::Fit(const Transport& transport) {
  double weights = 0;
  double bytes = 0;
  double seconds = 0;
  double bytes_bytes = 0;
  double bytes_seconds = 0;
  double least = transport.transfers[0].bytes;
  double most = least;
  for (const Transfer& transfer : transport.transfers) {
    const double weight = 1 / (transfer.seconds * transfer.seconds);
    weights += weight;
    bytes += weight * transfer.bytes;
    seconds += weight * transfer.seconds;
    bytes_bytes += weight * transfer.bytes * transfer.bytes;
    bytes_seconds += weight * transfer.bytes * transfer.seconds;
    least = std::min(least, transfer.bytes);
    most = std::max(most, transfer.bytes);
  }
  double fixed = 0;
  double seconds_per_byte = bytes_seconds / bytes_bytes;  // the line through 0
  if (most >= kSizeSpread * least) {
    const double determinant = weights * bytes_bytes - bytes * bytes;
    const double slope = (weights * bytes_seconds - bytes * seconds) / determinant;
    const double intercept = (bytes_bytes * seconds - bytes * bytes_seconds) / determinant;
    if (slope > 0 && intercept > 0) {
      fixed = intercept;
      seconds_per_byte = slope;
    }
  }
  v1::WorkerRates::TransportRate rate;
  rate.set_name(transport.name);
  rate.set_fixed_seconds(fixed);
  rate.set_bytes_per_second(1 / seconds_per_byte);
  return rate;
}

}  // namespace baton
