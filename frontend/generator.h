#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "baton/v1/completions.pb.h"
#include "baton/v1/worker.pb.h"
#include "common/clock.h"
#include "common/strong_id.h"

namespace baton {

// The seam between what faces clients and whoever computes: the router asks a decode worker, a
// decode worker asks its own engine.

// One request, checked and tokenized.
struct GenerationJob {
  std::string request_id;
  v1::SequenceSpec sequence;
  std::uint32_t choices = 1;      // sequences to make of the prompt; the seed is that of choice 0
  std::vector<std::string> stop;  // see Generator
  v1::Path path = v1::PATH_UNSPECIFIED;  // unspecified: the generator chooses
  std::optional<TimePoint> deadline;     // the generator gives up then, with DEADLINE_EXCEEDED
  std::string tenant =
      "default";  // whose it is: the authenticated identity, else metadata `x-baton-tenant`
  std::int32_t priority = 0;                  // lower first
  std::string session;                        // affinity key; empty: none
  std::string traceparent;                    // W3C; empty: not traced
  TimePoint arrival = Clock::System().Now();  // of the request
};

// The next token of one choice.
struct GeneratedToken {
  TokenId id;
  std::uint32_t choice = 0;
  std::optional<v1::TokenLogprob> logprob;  // when asked for; may hold what is not finite
};

// Where a request went and what it took.
struct GenerationResult {
  v1::GenerateEvent::Finished finished;
  v1::RouteReason reason = v1::ROUTE_REASON_UNSPECIFIED;
  Duration route{0};  // spent on choosing
};

// Hears of one generation. Calls come from any thread, one at a time, and may begin before
// Generator::Start has returned. Exactly one of OnFinished and OnError comes, and it is the last
// call.
class GenerationObserver {
 public:
  virtual ~GenerationObserver() = default;
  // What is known by now, with an unspecified finish reason; any number of times, at the latest
  // before the first token. Without it, a request that a stop string ends has nothing to say about
  // its path.
  virtual void OnProgress(const GenerationResult& so_far) = 0;
  // When they were asked for: once, before any token; of all tokens of the prompt but the first.
  virtual void OnPromptLogprobs(v1::Logprobs logprobs) = 0;
  // The one that ends the choice (end of sequence, stop token) is among them.
  virtual void OnToken(GeneratedToken token) = 0;
  // A choice has ended while another one goes on.
  virtual void OnChoiceEnd(std::uint32_t choice, v1::FinishReason reason) = 0;
  // The last choice has ended, for the result's reason.
  virtual void OnFinished(const GenerationResult& result) = 0;
  virtual void OnError(absl::Status status) = 0;
};

// A generation under way. Thread-safe. It lets go of its observer once that has heard the end; it
// may be destroyed before that, which does not stop it, and during a call to the observer.
class Generation {
 public:
  virtual ~Generation() = default;
  // Ends it soon, without blocking: the observer then hears CANCELLED, or the end that was on its
  // way already. Any number of times, also after the end.
  virtual void Cancel() = 0;
};

// A choice whose text has come to one of the job's stop strings is over, as TextStream sees it: the
// generator may send no more of it and owes its end. It does not cut the text: that is the
// observer's.
//
// Thread-safe.
class Generator {
 public:
  virtual ~Generator() = default;
  // Does not block. Never null: a job that cannot be started ends by OnError. The generation shares
  // `observer` until the end because neither side knows who finishes first: the client's call or
  // the computation.
  virtual std::shared_ptr<Generation> Start(GenerationJob job,
                                            std::shared_ptr<GenerationObserver> observer) = 0;
};

}  // namespace baton
