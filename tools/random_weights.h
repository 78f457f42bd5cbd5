#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/element_type.h"
#include "model/weight_table.h"

namespace baton {

// One random weight, encoded row by row.
struct RandomWeight {
  ElementType type = ElementType::kF32;
  WeightShape shape;
  std::vector<std::string> rows;  // query and key rows in half-split rotary order
};

// The weight that `seed` and its name fix, encoded as `type`; a norm is always F32. Only integer
// and exactly rounded arithmetic goes into it, so that every machine makes the same bytes.
//
// The spread is chosen so that the tokens of a greedy run depend on the whole prompt: attention is
// peaked, and what the layers add outweighs the embedding of the last token.
//
// REQUIRES: the columns are whole blocks of `type`.
RandomWeight MakeRandomWeight(const ModelConfig& config,
                              const WeightName& name,
                              ElementType type,
                              std::uint64_t seed);

}  // namespace baton
