#include "router/router_generator.h"

#include <utility>

#include "router/routed_generation.h"

namespace baton {

RouterGenerator::RouterGenerator(Fleet& fleet, PlainRouteOptions options)
    : fleet_(fleet), options_(options) {}

std::shared_ptr<Generation> RouterGenerator::Start(GenerationJob job,
                                                   std::shared_ptr<GenerationObserver> observer) {
  auto generation =
      std::make_shared<RoutedGeneration>(fleet_, options_, std::move(job), std::move(observer));
  generation->Begin();
  return generation;
}

}  // namespace baton
