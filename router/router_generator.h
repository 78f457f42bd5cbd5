#pragma once

#include <memory>

#include "frontend/generator.h"
#include "router/choose_route.h"
#include "router/fleet.h"

namespace baton {

// Generates by choosing a route and asking a decode worker. Thread-safe.
class RouterGenerator final : public Generator {
 public:
  // `fleet` must outlive every observer that has not heard its end.
  RouterGenerator(Fleet& fleet, PlainRouteOptions options);

  std::shared_ptr<Generation> Start(GenerationJob job,
                                    std::shared_ptr<GenerationObserver> observer) override;

 private:
  Fleet& fleet_;
  const PlainRouteOptions options_;
};

}  // namespace baton
