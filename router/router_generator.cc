#include "router/router_generator.h"

#include <utility>

namespace baton {

std::shared_ptr<Generation> RouterGenerator::Start(GenerationJob job,
                                                   std::shared_ptr<GenerationObserver> observer) {
  auto generation = std::make_shared<RoutedGeneration>(parts_, std::move(job), std::move(observer));
  generation->Begin();
  return generation;
}

}  // namespace baton
