#pragma once

#include <memory>

#include "frontend/generator.h"
#include "router/routed_generation.h"

namespace baton {

// Generates by choosing a route and asking a decode worker. Thread-safe.
class RouterGenerator final : public Generator {
 public:
  // What `parts` borrows must outlive every observer that has not heard its end.
  explicit RouterGenerator(RoutingParts parts) : parts_(std::move(parts)) {}

  std::shared_ptr<Generation> Start(GenerationJob job,
                                    std::shared_ptr<GenerationObserver> observer) override;

 private:
  const RoutingParts parts_;
};

}  // namespace baton
