#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "baton/v1/worker.pb.h"
#include "frontend/generator.h"
#include "frontend/timer_thread.h"

namespace baton {

struct AdmissionOptions {
  // Requests that may wait; one more is refused, or takes the place of another. Each holds its
  // prompt, 4 bytes a token; what waits longest waits for so many others.
  std::size_t queue_size = 256;
  // Sequences that may run at once: what the workers that may get requests take. Asked at every
  // decision, with a lock held: quick, and calls nothing back. 0: nothing can be served at all;
  // requests then go on without a wait, to be told why.
  std::function<std::size_t()> limit;
};

// Stands before another generator: at most `limit` sequences run there at once, further requests
// wait in a bounded queue, in the order of AdmissionQueue.
//
// A request that finds the queue full gets RESOURCE_EXHAUSTED, reason QUEUE_FULL, at once, with a
// RetryInfo of the time that the queue takes to drain at the pace of late. Unless another one
// deserves its place less (AdmissionQueue::Displaced): then that one gets the same answer. One
// whose deadline passes in the queue gets DEADLINE_EXCEEDED, and nothing was computed for it;
// cancelling one frees its place at once. What waited has that time in its result's `queue`.
//
// A request for several choices counts as so many sequences; one for more than `limit` runs alone.
//
// Thread-safe. Outlives every observer of a running request; what still waits at its end gets
// UNAVAILABLE.
class AdmissionGenerator final : public Generator {
 public:
  // `inner` outlives this.
  AdmissionGenerator(Generator& inner, AdmissionOptions options);
  ~AdmissionGenerator() override;

  std::shared_ptr<Generation> Start(GenerationJob job,
                                    std::shared_ptr<GenerationObserver> observer) override;

  // queued, queue_size, running and refused; the retries are not known here.
  v1::AdmissionStatus Status() const;

 private:
  class Desk;
  class Ticket;

  // Shared with the tickets, which their callers may keep beyond this object's end.
  const std::shared_ptr<Desk> desk_;
  TimerThread timer_;  // last: what it runs uses the desk
};

}  // namespace baton
