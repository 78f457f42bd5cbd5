#pragma once

// From a number known at run time to code compiled for that number. Unnamed namespace: see
// vector_plain.h.
namespace baton {
namespace {

template <int kN>
struct Constant {
  static constexpr int kValue = kN;
};

// Calls function(Constant<n>{}) for n in [1, kMax].
template <int kMax, typename Function>
void WithConstant(int n, const Function& function) {
  if constexpr (kMax == 1) {
    function(Constant<1>{});
  } else {
    if (n == kMax) {
      function(Constant<kMax>{});
    } else {
      WithConstant<kMax - 1>(n, function);
    }
  }
}

// Size of the next tile when `remaining` is cut into as few tiles of at most `most` as possible, of
// about equal size: 16 by 12 is 8 and 8, since a thin tile wastes the loads of its weights.
inline int BalancedTile(int remaining, int most) {
  const int tiles = (remaining + most - 1) / most;
  return (remaining + tiles - 1) / tiles;
}

}  // namespace
}  // namespace baton
