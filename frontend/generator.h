#pragma once

#include <memory>
#include <optional>
#include <string>

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
  v1::Path path = v1::PATH_UNSPECIFIED;  // unspecified: the generator chooses
  std::optional<TimePoint> deadline;     // the generator gives up then, with DEADLINE_EXCEEDED
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
  // The next token; the one that ends the sequence (end of sequence, stop token) is among them.
  virtual void OnToken(TokenId id) = 0;
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
