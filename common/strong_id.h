#pragma once

#include <compare>
#include <cstdint>
#include <utility>

namespace baton {

// An integer that names one kind of thing and cannot be mistaken for another kind or for a count.
//
// Explicit to make, ordered and hashable, no arithmetic. Trivially copyable and of the size of Rep,
// so a span of ids can go to a kernel; unwrap with value() once at the top of an inner loop.
template <typename Tag, typename Rep = std::uint32_t>
class StrongId {
 public:
  using Representation = Rep;

  constexpr StrongId() = default;
  explicit constexpr StrongId(Rep value) : value_(value) {}

  constexpr Rep value() const { return value_; }

  friend constexpr auto operator<=>(StrongId, StrongId) = default;

  template <typename H>
  friend H AbslHashValue(H state, StrongId id) {
    return H::combine(std::move(state), id.value_);
  }

 private:
  Rep value_ = 0;
};

using TokenId = StrongId<struct TokenIdTag>;
using BlockId = StrongId<struct BlockIdTag>;        // index of a block in one process's pool
using LayerIndex = StrongId<struct LayerIndexTag>;  // 0 is the layer next to the embedding
using SequenceId = StrongId<struct SequenceIdTag, std::uint64_t>;  // one sequence inside one engine

}  // namespace baton
