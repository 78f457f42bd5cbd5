#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "frontend/generator.h"
#include "router/retry_budget.h"
#include "router/route_chooser.h"
#include "router/router_metrics.h"

namespace baton {

// What all requests of one router share. Borrows everything.
struct RoutingParts {
  RouteChooser& chooser;
  RetryBudget& retries;
  RouterMetrics& metrics;
  // Of the router's own model: with salt and zone they name a prompt's blocks.
  Digest model_fingerprint{};
  Digest tokenizer_fingerprint{};
};

// One request on its way through the fleet: chooses a route, asks the decode worker, and asks
// another one, once and as the budget allows, when the first could not be reached or was shutting
// down and the client has seen nothing of it yet.
//
// Cancel is thread-safe; the observer's calls come one at a time, from the attempt under way.
class RoutedGeneration final : public Generation,
                               public GenerationObserver,
                               public std::enable_shared_from_this<RoutedGeneration> {
 public:
  // `parts` must outlive the end of the generation.
  RoutedGeneration(const RoutingParts& parts,
                   GenerationJob job,
                   std::shared_ptr<GenerationObserver> observer);

  // The first attempt. Call once.
  void Begin();

  void Cancel() override;

  // Of the attempt under way.
  void OnProgress(const GenerationResult& so_far) override;
  void OnPromptLogprobs(v1::Logprobs logprobs) override;
  void OnToken(GeneratedToken token) override;
  void OnChoiceEnd(std::uint32_t choice, v1::FinishReason reason) override;
  void OnFinished(const GenerationResult& result) override;
  void OnError(absl::Status status) override;

 private:
  // Asks a decode worker that has not been asked yet. Not OK, and nothing was started, when there
  // is none.
  absl::Status Try();
  v1::GenerateRequest MakeRequest() const;
  // What the handoff that was tried tells of the two workers' connection.
  void NotePair(const v1::GenerateEvent::Finished& finished);
  bool cancelled() const;

  const RoutingParts& parts_;
  const GenerationJob job_;
  std::vector<PrefixHash> hashes_;  // of the prompt's full blocks

  // Used by the attempt under way.
  std::shared_ptr<GenerationObserver> observer_;  // null once it has heard the end
  ChosenRoute route_;
  std::vector<WorkerSlot> tried_;  // decode workers
  bool seen_ = false;  // the observer has heard of a token: another try could give it again
  Duration choosing_{0};

  mutable absl::Mutex mutex_;
  std::shared_ptr<Generation> attempt_ ABSL_GUARDED_BY(mutex_);  // shared with gRPC's call
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton
