#pragma once

#include <memory>

#include "planner/cost_model.h"

namespace baton {

// The cost model of a worker of which nothing was measured yet: round figures whose ratios decide,
// not their sizes. Lives for the whole program.
std::shared_ptr<const CostModel> NominalCosts();

}  // namespace baton
