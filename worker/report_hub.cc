#include "worker/report_hub.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/time/time.h"

namespace baton {

ReportStream::ReportStream(ReportHub& hub, ReportCall& call, ReportFeed feed)
    : hub_(hub), call_(call), feed_(std::move(feed)) {}

void ReportStream::OnWritten() {
  bool over = false;
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    description_flies_ = false;
    over = ending_;
  }
  if (over) {
    call_.OnStreamEnd();
  } else {
    hub_.Wake();
  }
}

void ReportStream::AskSnapshot() {
  {
    absl::MutexLock lock(&mutex_);
    feed_.AskSnapshot();
  }
  hub_.Wake();
}

void ReportStream::End() {
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(ending_, true) || writing_) {
      return;  // OnWritten sees to it
    }
  }
  call_.OnStreamEnd();
}

ReportStream::Outlook ReportStream::Advance(TimePoint now) {
  {
    absl::MutexLock lock(&mutex_);
    if (ending_ || writing_) {
      return {.state = ending_ ? Outlook::State::kOver : Outlook::State::kWriting,
              .due = TimePoint::max()};
    }
    std::optional<v1::WorkerReport> report = feed_.Next(now);
    if (!report.has_value()) {
      return {.state = feed_.behind() ? Outlook::State::kBehind : Outlook::State::kWaiting,
              .due = feed_.next_due()};
    }
    report_ = *std::move(report);
    writing_ = true;
    if (report_.has_description()) {
      description_flies_ = std::exchange(description_asked_, false);
    }
  }
  // While writing_ is set the call does not end.
  call_.StartReport(report_);
  return {.state = Outlook::State::kWriting, .due = TimePoint::max()};
}

void ReportStream::AskDescription() {
  absl::MutexLock lock(&mutex_);
  description_asked_ = true;
  feed_.AskDescription();
}

bool ReportStream::AwaitDescription(TimePoint deadline) {
  absl::MutexLock lock(&mutex_);
  const Duration left = std::max(deadline - Clock::System().Now(), Duration::zero());
  return mutex_.AwaitWithTimeout(absl::Condition(this, &ReportStream::HasDescribed),
                                 absl::FromChrono(left));
}

ReportHub::ReportHub(std::function<v1::WorkerDescription()> describe,
                     KvEventLog& log,
                     const ReportTimes& times)
    : describe_(std::move(describe)), log_(log), times_(times) {
  log_.SetListener([this] { Wake(); });
  thread_ = std::jthread([this] { Run(); });
}

ReportHub::~ReportHub() {
  log_.SetListener(nullptr);
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
}

std::shared_ptr<ReportStream> ReportHub::Open(ReportCall& call) {
  const auto stream = std::shared_ptr<ReportStream>(
      new ReportStream(*this, call, ReportFeed(describe_, log_, times_)));
  bool ended = false;
  {
    absl::MutexLock lock(&mutex_);
    ended = ended_;
    if (!ended) {
      streams_.push_back(stream);
      news_ = true;
    }
  }
  if (ended) {
    stream->End();
  }
  return stream;
}

void ReportHub::Describe(Duration bound) {
  const TimePoint deadline = Clock::System().Now() + bound;
  std::vector<std::shared_ptr<ReportStream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    streams = streams_;
  }
  for (const auto& stream : streams) {
    stream->AskDescription();
  }
  Wake();
  for (const auto& stream : streams) {
    stream->AwaitDescription(deadline);
  }
}

void ReportHub::EndStreams() {
  std::vector<std::shared_ptr<ReportStream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    streams = streams_;
  }
  for (const auto& stream : streams) {
    stream->End();
  }
}

void ReportHub::Wake() {
  absl::MutexLock lock(&mutex_);
  news_ = true;
}

void ReportHub::Run() {
  using State = ReportStream::Outlook::State;
  while (true) {
    std::vector<std::shared_ptr<ReportStream>> streams;
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) {
        return;
      }
      news_ = false;
      streams = streams_;
    }
    const TimePoint now = Clock::System().Now();
    const std::uint64_t seen = log_.next_event();
    TimePoint due = now + times_.description;
    std::array<int, 4> streams_in{};  // by state
    std::vector<std::shared_ptr<ReportStream>> over;
    for (const auto& stream : streams) {
      const ReportStream::Outlook outlook = stream->Advance(now);
      due = std::min(due, outlook.due);
      ++streams_in[static_cast<std::size_t>(outlook.state)];
      if (outlook.state == State::kOver) {
        over.push_back(stream);
      }
    }
    // While a stream is behind anyway, further changes go with what it is told next; one that
    // writes wakes this thread when it is through.
    if (streams_in[static_cast<std::size_t>(State::kWaiting)] > 0 &&
        streams_in[static_cast<std::size_t>(State::kBehind)] == 0 && !log_.CallOnNextChange(seen)) {
      continue;
    }
    absl::MutexLock lock(&mutex_);
    for (const auto& stream : over) {
      std::erase(streams_, stream);
    }
    const auto awake = [this]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return news_ || stopping_; };
    const Duration wait = std::max(due - Clock::System().Now(), Duration::zero());
    mutex_.AwaitWithTimeout(absl::Condition(&awake), absl::FromChrono(wait));
  }
}

}  // namespace baton
