#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "frontend/generator.h"

namespace baton {

// A generator that a test plays by hand or by a script. All events come from one thread of its own,
// as from an engine; a cancelled generation ends with CANCELLED. It looks for no stop strings: the
// test ends a choice that has met one.
class FakeGenerator final : public Generator {
 public:
  class Fake final : public Generation {
   public:
    Fake(FakeGenerator& owner, GenerationJob given, std::shared_ptr<GenerationObserver> observer)
        : job(std::move(given)), owner_(owner), observer_(std::move(observer)) {}

    void Progress(GenerationResult result) {
      Post([result](GenerationObserver& observer) { observer.OnProgress(result); });
    }
    void PromptLogprobs(const v1::Logprobs& logprobs) {
      Post([logprobs](GenerationObserver& observer) { observer.OnPromptLogprobs(logprobs); });
    }
    void Token(const GeneratedToken& token) {
      Post([token](GenerationObserver& observer) { observer.OnToken(token); });
    }
    void Token(TokenId id, std::uint32_t choice = 0) {
      Token(GeneratedToken{.id = id, .choice = choice});
    }
    void Tokens(const std::vector<TokenId>& ids, std::uint32_t choice = 0) {
      for (const TokenId id : ids) {
        Token(id, choice);
      }
    }
    void EndChoice(std::uint32_t choice, v1::FinishReason reason) {
      Post([=](GenerationObserver& observer) { observer.OnChoiceEnd(choice, reason); });
    }
    void Finish(GenerationResult result) {
      PostEnd([result](GenerationObserver& observer) { observer.OnFinished(result); });
    }
    void Finish(v1::FinishReason reason) {
      GenerationResult result;
      result.finished.set_finish_reason(reason);
      Finish(result);
    }
    void Fail(absl::Status status) {
      PostEnd([status](GenerationObserver& observer) { observer.OnError(status); });
    }
    void Cancel() override {
      cancelled_ = true;
      if (ends_when_cancelled_) {
        Fail(absl::CancelledError("cancelled"));
      }
    }

    bool cancelled() const { return cancelled_; }
    // A generation that takes its time to end: the test calls Fail or Finish.
    void LingerWhenCancelled() { ends_when_cancelled_ = false; }

    const GenerationJob job;

   private:
    void Post(std::function<void(GenerationObserver&)> event) {
      owner_.Post([this, keep = owner_.Find(this), event = std::move(event)] {
        if (observer_ != nullptr) {
          event(*observer_);
        }
      });
    }
    void PostEnd(std::function<void(GenerationObserver&)> event) {
      owner_.Post([this, keep = owner_.Find(this), event = std::move(event)] {
        if (observer_ != nullptr) {
          event(*observer_);
          observer_.reset();
        }
      });
    }

    FakeGenerator& owner_;
    std::shared_ptr<GenerationObserver> observer_;  // of the event thread
    std::atomic<bool> cancelled_{false};
    std::atomic<bool> ends_when_cancelled_{true};
  };

  FakeGenerator() : thread_([this] { Run(); }) {}
  ~FakeGenerator() override {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }

  // Runs for every new generation, in Start. Set before the first request.
  std::function<void(Fake&)> on_start;

  std::shared_ptr<Generation> Start(GenerationJob job,
                                    std::shared_ptr<GenerationObserver> observer) override {
    auto fake = std::make_shared<Fake>(*this, std::move(job), std::move(observer));
    {
      absl::MutexLock lock(&mutex_);
      started_.push_back(fake);
    }
    if (on_start) {
      on_start(*fake);
    }
    return fake;
  }

  std::size_t started() const {
    absl::MutexLock lock(&mutex_);
    return started_.size();
  }

  // The generation of that number, waited for; null after ten seconds.
  std::shared_ptr<Fake> Await(std::size_t number) {
    absl::MutexLock lock(&mutex_);
    const auto there = [this, number] { return started_.size() > number; };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(10))) {
      return nullptr;
    }
    return started_[number];
  }

 private:
  std::shared_ptr<Fake> Find(const Fake* fake) {
    absl::MutexLock lock(&mutex_);
    for (const std::shared_ptr<Fake>& one : started_) {
      if (one.get() == fake) {
        return one;
      }
    }
    return nullptr;
  }

  void Post(std::function<void()> event) {
    absl::MutexLock lock(&mutex_);
    events_.push_back(std::move(event));
  }

  void Run() {
    while (true) {
      std::deque<std::function<void()>> events;
      {
        absl::MutexLock lock(&mutex_);
        const auto news = [this] { return stopping_ || !events_.empty(); };
        mutex_.Await(absl::Condition(&news));
        if (events_.empty()) {
          return;
        }
        events.swap(events_);
      }
      for (const std::function<void()>& event : events) {
        event();
      }
    }
  }

  mutable absl::Mutex mutex_;
  std::vector<std::shared_ptr<Fake>> started_;
  std::deque<std::function<void()>> events_;
  bool stopping_ = false;
  std::jthread thread_;
};

}  // namespace baton
