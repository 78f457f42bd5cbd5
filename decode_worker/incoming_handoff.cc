#include "decode_worker/incoming_handoff.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/failpoint.h"
#include "common/log.h"
#include "proto/identity_conversion.h"
#include "proto/status_conversion.h"
#include "worker/token_conversion.h"
#include "worker/transport_setup.h"

namespace baton {

// One try with one candidate. Turns the events of its call and of its transfer into tasks on the
// handoff's executor, where they count only while this is still the current attempt.
class IncomingHandoff::Attempt final : public PrefillCallEvents,
                                       public FetchSink,
                                       public std::enable_shared_from_this<Attempt> {
 public:
  Attempt(std::shared_ptr<IncomingHandoff> owner, const v1::PrefillCandidate& with)
      : candidate(with), owner_(std::move(owner)) {}

  void OnPrefillEvent(const v1::PrefillEvent& event) override {
    PostIfCurrent([event](IncomingHandoff& handoff) {
      if (event.has_accepted()) {
        handoff.HandleAccepted(event.accepted());
      } else if (event.has_first_token()) {
        handoff.HandleFirstToken(event.first_token());
      }
    });
  }
  void OnPrefillEnd(const absl::Status& status) override {
    PostIfCurrent([status](IncomingHandoff& handoff) { handoff.HandleCallEnd(status); });
  }
  void OnProgress(HandoffId, std::size_t bytes) override {
    PostIfCurrent([bytes](IncomingHandoff& handoff) {
      handoff.attempt_->landed_bytes = bytes;
      if (handoff.attempt_->watch) {
        handoff.attempt_->watch->OnProgress(Clock::System().Now(), bytes);
      }
    });
  }
  void OnLanded(HandoffId, const FetchStats& stats) override {
    PostIfCurrent([stats](IncomingHandoff& handoff) { handoff.HandleLanded(stats); });
    LetGo();
  }
  void OnFailed(HandoffId, const absl::Status& why, const std::vector<int>& whole_blocks) override {
    PostIfCurrent([why, whole_blocks](IncomingHandoff& handoff) {
      handoff.HandleFetchFailed(why, whole_blocks);
    });
    LetGo();
  }

  template <typename Action>
  void PostIfCurrent(Action action) {
    owner_->Post([self = shared_from_this(), action = std::move(action)] {
      if (self->owner_->attempt_ == self) {
        action(*self->owner_);
      }
    });
  }

  // The transfer service reports to a plain pointer: from Fetch to its one event the attempt holds
  // itself.
  void HoldForFetch() { self_ = shared_from_this(); }
  void LetGo() { std::exchange(self_, nullptr).reset(); }

  const HandoffId id = HandoffId::Make();
  const v1::PrefillCandidate candidate;
  const TimePoint begun = Clock::System().Now();
  // Executor's thread only.
  DecodeHandoffState state = DecodeHandoffState::kLeased;
  std::shared_ptr<PrefillCall> call;
  bool accepted = false;
  bool call_ended = false;  // well, while the fetch was under way
  bool fetching = false;
  bool landed = false;
  std::size_t landed_bytes = 0;
  std::optional<LandingWatch> watch;    // from the first token on
  std::optional<absl::Status> failure;  // set while the fetch is being cancelled because of it

 private:
  const std::shared_ptr<IncomingHandoff> owner_;
  std::shared_ptr<Attempt> self_;
};

namespace {

constexpr char kNoFirstToken[] = "the prefill call ended without a first token";
constexpr Duration kWatchPause = std::chrono::milliseconds(100);
// Fewer tokens say little of how long a prompt takes.
constexpr int kTellingTokens = 64;

// What a peer says that it took, within what it can have taken.
Duration AsSaid(const google::protobuf::Duration& said, Duration longest) {
  if (said.seconds() > std::chrono::ceil<std::chrono::seconds>(longest).count()) {
    return longest;  // its nanoseconds may not fit
  }
  return said.seconds() < 0
             ? Duration::zero()
             : std::clamp<Duration>(FromProtoDuration(said), Duration::zero(), longest);
}

}  // namespace

IncomingHandoff::IncomingHandoff(const HandoffContext& context, HandoffPlan plan, Listener listener)
    : context_(context),
      plan_(std::move(plan)),
      listener_(std::move(listener)),
      prompt_blocks_(BlocksForTokens(plan_.sequence.prompt_size())) {}

template <typename Task>
void IncomingHandoff::Post(Task task) {
  context_.executor.Post([self = shared_from_this(), task = std::move(task)]() mutable { task(); });
}

void IncomingHandoff::SetSequence(SequenceId id) {
  Post([this, id] {
    sequence_ = id;
    TryWhenReady();
  });
}

void IncomingHandoff::OnAdmitted(PinnedBlocks pin, int valid_blocks) {
  Post([this, admitted = std::move(pin), valid_blocks]() mutable {
    pin_.emplace(std::move(admitted));
    valid_blocks_ = valid_blocks;
    TryWhenReady();
  });
}

void IncomingHandoff::OnLayerComputed(LayerIndex, int, int) {}  // an import computes nothing

void IncomingHandoff::TryWhenReady() {
  if (over_) {
    pin_.reset();
  } else if (sequence_.has_value() && pin_.has_value()) {
    if (next_candidate_ == 0 && IsMostlyHere()) {
      report_.prefix_cached = true;
      listener_.on_change(report_);
      ComputeHere();
    } else {
      StartAttempt();
    }
  }
}

// Whoever asked could not know what the prefix cache holds.
bool IncomingHandoff::IsMostlyHere() const {
  const int missing = plan_.sequence.prompt_size() - valid_blocks_ * kBlockTokens;
  return !plan_.forced && valid_blocks_ > 0 && missing < plan_.colocate_below_tokens;
}

void IncomingHandoff::StartAttempt() {
  HitFailpoint("decode.kLeased").IgnoreError();
  attempt_ = std::make_shared<Attempt>(shared_from_this(), plan_.candidates[next_candidate_++]);
  span_ = OpenSpan(context_.core.spans(), "decode.handoff", plan_.traceparent);
  span_.Add("baton.prefill_worker", attempt_->candidate.address());
  v1::PrefillRequest request;
  request.set_request_id(plan_.request_id);
  request.set_traceparent(span_.traceparent());
  request.set_handoff_id(std::string(attempt_->id.AsBytes()));
  request.set_epoch(pin_->generation());
  request.set_decode_instance_id(std::string(context_.core.instance().AsBytes()));
  request.set_expected_instance_id(attempt_->candidate.instance_id());
  *request.mutable_identity() = ToProto(context_.core.engine().identity());
  *request.mutable_sequence() = plan_.sequence;
  request.set_first_token_only(!NeedsKv());
  for (std::string& transport : AllowedTransports(context_.core.transport())) {
    request.add_kv_transports(std::move(transport));
  }
  LogEvent(LogLevel::kDebug, "handoff.requested",
           {{"request", plan_.request_id},
            {"handoff", attempt_->id.ToString()},
            {"prefill_worker", attempt_->candidate.address()}});
  attempt_->call = context_.prefill.Prefill(attempt_->candidate.address(), std::move(request),
                                            plan_.deadline, attempt_);
  FailUnless(
      context_.times.accept, [](const Attempt& attempt) { return attempt.accepted; },
      "no answer to the prefill call");
}

// Fails the current attempt if it is still the current one after this time and `met` says no.
template <typename Condition>
void IncomingHandoff::FailUnless(Duration after, Condition met, const char* why) {
  // Weak: a timer must not keep what has long ended.
  context_.executor.PostAt(
      Clock::System().Now() + after,
      [handoff = weak_from_this(), waiting_for = std::weak_ptr(attempt_), met, why] {
        const auto self = handoff.lock();
        const auto attempt = waiting_for.lock();
        if (self != nullptr && attempt != nullptr && self->attempt_ == attempt && !met(*attempt)) {
          self->FailAttempt(absl::UnavailableError(why));
        }
      });
}

// Until the blocks have landed or are not worth waiting for.
void IncomingHandoff::WatchLanding() {
  const TimePoint now = Clock::System().Now();
  context_.executor.PostAt(now + kWatchPause, [handoff = weak_from_this(),
                                               watched = std::weak_ptr(attempt_)] {
    const auto self = handoff.lock();
    const auto attempt = watched.lock();
    if (self == nullptr || attempt == nullptr || self->attempt_ != attempt || !attempt->fetching ||
        attempt->failure.has_value()) {
      return;
    }
    if (const std::optional<std::string> why = attempt->watch->WhyGiveUp(Clock::System().Now())) {
      self->FailAttempt(absl::UnavailableError(*why));
    } else {
      self->WatchLanding();
    }
  });
}

// Of what is fetched, here; absent when the client wants nothing else than the fetch.
std::optional<Duration> IncomingHandoff::ComputingTime() const {
  if (plan_.forced) {
    return std::nullopt;
  }
  const int computed = plan_.sequence.prompt_size() - static_cast<int>(report_.cached_tokens);
  if (computed < kTellingTokens || report_.prefill == Duration::zero()) {
    return context_.times.computing_unknown +
           std::chrono::duration_cast<Duration>(
               std::chrono::duration<double>(static_cast<double>(FetchBytes()) /
                                             context_.times.computing_unknown_bytes_per_second));
  }
  return report_.prefill / computed * (prompt_blocks_ - valid_blocks_) * kBlockTokens;
}

std::size_t IncomingHandoff::FetchBytes() const {
  return static_cast<std::size_t>(prompt_blocks_ - valid_blocks_) *
         context_.core.engine().identity().kv.block_bytes();
}

void IncomingHandoff::HandleAccepted(const v1::PrefillEvent::Accepted& accepted) {
  const std::optional<InstanceId> peer = InstanceId::FromBytes(accepted.instance_id());
  if (attempt_->accepted || attempt_->failure.has_value()) {
    return;
  }
  if (!peer.has_value()) {
    FailAttempt(absl::InternalError("the prefill worker sent no instance id"));
    return;
  }
  attempt_->accepted = true;
  report_.split = true;
  report_.prefill_worker = attempt_->candidate.address();
  listener_.on_change(report_);
  if (!NeedsKv()) {
    return;  // the first token is all there is
  }
  FetchRequest fetch{.id = attempt_->id,
                     .epoch = pin_->generation(),
                     .address = accepted.kv_address(),
                     .peer = *peer,
                     .deadline = plan_.deadline,
                     .sink = attempt_.get()};
  for (int i = valid_blocks_; i < prompt_blocks_; ++i) {
    fetch.blocks.push_back({i, pin_->blocks()[static_cast<std::size_t>(i)]});
  }
  fetch.pin = std::make_unique<BlockPin>(*std::move(pin_));
  pin_.reset();
  attempt_->HoldForFetch();
  if (const absl::Status status = context_.core.transfer().Fetch(std::move(fetch)); !status.ok()) {
    attempt_->LetGo();
    FailAttempt(status);
    return;
  }
  attempt_->fetching = true;
  MustMove(attempt_->state, DecodeHandoffState::kRequested);
  MustMove(attempt_->state, DecodeHandoffState::kFetching);
}

void IncomingHandoff::HandleFirstToken(const v1::PrefillEvent::FirstToken& first) {
  if (const absl::Status status = Check(first); !status.ok()) {
    FailAttempt(status);
    return;
  }
  if (first_token_.has_value() && *first_token_ != first.token()) {
    // Two workers with one identity computed two tokens: nothing they say can be trusted.
    LogEvent(LogLevel::kError, "handoff.tokens_differ", {{"request", plan_.request_id}});
    context_.core.engine().Cancel(
        *sequence_, absl::DataLossError("two prefill workers sampled different first tokens"));
    return;
  }
  if (!first_token_.has_value()) {
    first_token_ = first.token();
    report_.first_token = Clock::System().Now();
    const Duration longest = *report_.first_token - attempt_->begun;
    report_.queue = AsSaid(first.queue(), longest);
    report_.prefill = AsSaid(first.prefill(), longest);
    report_.cached_tokens =
        std::min(first.cached_tokens(), static_cast<std::uint32_t>(plan_.sequence.prompt_size()));
    listener_.on_change(report_);
    SelectedToken token = FromProto(first.logprob());
    token.token = TokenId(first.token());
    listener_.on_first_token(token);
    context_.core.engine().GiveFirstToken(*sequence_, std::move(token),
                                          FromProto(first.prompt_logprobs()));
  }
  if (attempt_->fetching && !attempt_->watch) {
    attempt_->watch.emplace(context_.times.landing, Clock::System().Now(), FetchBytes(),
                            attempt_->landed_bytes, ComputingTime());
    WatchLanding();
  }
  AdoptIfComplete();
}

// The token is a row of the step that other sequences share: one that is none would fail them all.
absl::Status IncomingHandoff::Check(const v1::PrefillEvent::FirstToken& first) const {
  if (!attempt_->accepted) {
    return absl::InternalError("the first token came before the call was accepted");
  }
  const int vocabulary = context_.core.checkpoint().config().vocabulary;
  if (std::int64_t{first.token()} >= vocabulary) {
    return absl::InternalError(absl::StrCat("the first token is ", first.token(),
                                            ", beyond the vocabulary of ", vocabulary));
  }
  const v1::SequenceSpec& sequence = plan_.sequence;
  const int of_prompt = sequence.prompt_logprobs() ? sequence.prompt_size() - 1 : 0;
  if (first.has_logprob() != sequence.has_logprobs() ||
      first.prompt_logprobs().tokens_size() != of_prompt) {
    return absl::InternalError("the first token came without the log probabilities asked for");
  }
  return absl::OkStatus();
}

void IncomingHandoff::HandleLanded(const FetchStats& stats) {
  attempt_->fetching = false;
  attempt_->landed = true;
  valid_blocks_ = prompt_blocks_;
  MustMove(attempt_->state, DecodeHandoffState::kLanded);
  RecordTransfer(stats);
  report_.transport = stats.transport;
  report_.transfer = stats.last_byte - stats.first_byte;
  context_.core.rates().OnLanded(stats);
  listener_.on_change(report_);
  LogEvent(
      LogLevel::kDebug, "handoff.landed",
      {{"request", plan_.request_id},
       {"handoff", attempt_->id.ToString()},
       {"bytes", stats.bytes},
       {"us", std::chrono::duration_cast<std::chrono::microseconds>(report_.transfer).count()}});
  AdoptIfComplete();
  if (attempt_ != nullptr && (attempt_->call_ended || attempt_->failure.has_value())) {
    // The landing has crossed the end of the call, or of this attempt: no first token will come.
    ContinueAfterFailure(attempt_->failure.value_or(absl::UnavailableError(kNoFirstToken)));
  }
}

void IncomingHandoff::RecordTransfer(const FetchStats& stats) {
  context_.core.worker_metrics().OnTransfer(stats.bytes);
  OpenSpan transfer(context_.core.spans(), "kv.transfer", span_.traceparent());
  transfer.set_start(stats.first_byte);
  transfer.Add("baton.transport", stats.transport);
  transfer.Add("baton.bytes", static_cast<std::int64_t>(stats.bytes));
  transfer.Add("baton.refetched_blocks", std::int64_t{stats.refetched_blocks});
  transfer.EndAt(stats.last_byte, absl::OkStatus());
}

void IncomingHandoff::AdoptIfComplete() {
  if (attempt_->landed && first_token_.has_value()) {
    context_.core.engine().Adopt(*sequence_);
    MustMove(attempt_->state, DecodeHandoffState::kAdopted);
    over_ = true;
    EndAttempt(DecodeHandoffState::kDone, absl::OkStatus());
  }
}

void IncomingHandoff::HandleCallEnd(const absl::Status& status) {
  if (first_token_.has_value() && !NeedsKv()) {
    return;  // it was all there is, and has ended the sequence
  }
  if (attempt_->landed) {
    // All of the prompt is here; without a first token the last position is computed again for it.
    ContinueAfterFailure(status);
  } else if (!status.ok() || !attempt_->fetching) {
    FailAttempt(status.ok() ? absl::UnavailableError(kNoFirstToken) : status);
  } else {
    // The other side saw our acknowledgement before we heard of the landing: that event is on its
    // way.
    attempt_->call_ended = true;
  }
}

void IncomingHandoff::HandleFetchFailed(const absl::Status& why,
                                        const std::vector<int>& whole_blocks) {
  attempt_->fetching = false;
  for (const int block : whole_blocks) {
    valid_blocks_ += block == valid_blocks_ ? 1 : 0;
  }
  // A fetch that failed by itself says why; the end of the call, which its cancellation at the
  // other side brings about, may have come before.
  FailAttempt(absl::IsCancelled(why) ? attempt_->failure.value_or(why) : why);
}

void IncomingHandoff::FailAttempt(const absl::Status& why) {
  attempt_->call->Cancel();
  if (attempt_->fetching) {
    // What landed is known only when the transfer has ended; its event comes at once. The call we
    // have just cancelled may end before it: that is not why.
    attempt_->failure = attempt_->failure.value_or(why);
    context_.core.transfer().CancelFetch(attempt_->id);
    return;
  }
  LogEvent(LogLevel::kWarn, "handoff.failed",
           {{"request", plan_.request_id},
            {"handoff", attempt_->id.ToString()},
            {"prefill_worker", attempt_->candidate.address()},
            {"state", std::string(ToString(attempt_->state))},
            {"landed_blocks", valid_blocks_},
            {"status", why}});
  ContinueAfterFailure(why);
}

void IncomingHandoff::ContinueAfterFailure(const absl::Status& why) {
  EndAttempt(DecodeHandoffState::kFailed, why);
  if (plan_.sequence.prompt_logprobs() && !first_token_.has_value()) {
    // The prompt's log probabilities come with the first token, or from computing all of the prompt
    // here: blocks that landed are of no use without them.
    valid_blocks_ = 0;
  }
  if (valid_blocks_ == prompt_blocks_) {
    ComputeHere();
  } else if (next_candidate_ < plan_.candidates.size()) {
    // The next try needs a pin: the last one's still held, or new blocks for those its transport
    // may write to.
    if (pin_.has_value()) {
      StartAttempt();
    } else {
      context_.core.engine().RenewImport(*sequence_, valid_blocks_);
    }
  } else if (plan_.forced) {
    over_ = true;
    pin_.reset();
    context_.core.engine().Cancel(
        *sequence_, WithReason(absl::UnavailableError(absl::StrCat("the forced split failed: ",
                                                                   std::string(why.message()))),
                               "PREFILL_FAILED"));
  } else {
    report_.split = false;
    report_.prefill_failed = true;
    listener_.on_change(report_);
    ComputeHere();
  }
}

void IncomingHandoff::ComputeHere() {
  over_ = true;
  pin_.reset();
  LogEvent(
      LogLevel::kInfo, "handoff.computing_here",
      {{"request", plan_.request_id}, {"valid_blocks", valid_blocks_}, {"blocks", prompt_blocks_}});
  context_.core.engine().ResumeLocally(*sequence_, valid_blocks_);
}

void IncomingHandoff::Abandon() {
  Post([this] {
    over_ = true;
    pin_.reset();
    if (attempt_ != nullptr) {
      attempt_->call->Cancel();
      if (attempt_->fetching) {
        context_.core.transfer().CancelFetch(attempt_->id);
      }
      EndAttempt(DecodeHandoffState::kCancelled,
                 first_token_.has_value() && !NeedsKv()
                     ? absl::OkStatus()  // the first token was all there is
                     : absl::CancelledError("the request has ended"));
    }
  });
}

void IncomingHandoff::EndAttempt(DecodeHandoffState end, const absl::Status& why) {
  span_.End(why);
  context_.core.worker_metrics().OnHandoffEnd(end);
  MustMove(attempt_->state, end);
  attempt_.reset();
}

}  // namespace baton
