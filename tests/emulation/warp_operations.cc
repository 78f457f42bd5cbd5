#include <algorithm>
#include <bit>

#include "kernels/cuda/launch.cuh"

// Exchanges between lanes. They run in one lane's turn while all others wait, and read what those
// keep on their stacks: therefore here, where nothing is instrumented.
namespace baton::emulated {
namespace {

template <class Function>
void ForEachLane(void* const* operands, std::uint32_t mask, Function function) {
  for (std::uint32_t lanes = mask; lanes != 0; lanes &= lanes - 1) {
    const int lane = std::countr_zero(lanes);
    function(lane, *static_cast<Exchange*>(operands[lane]));
  }
}

template <class Function>
void Reduce(void* const* operands, std::uint32_t mask, Function join) {
  bool first = true;
  std::uint32_t joined = 0;
  ForEachLane(operands, mask, [&](int, const Exchange& exchange) {
    const auto value = static_cast<std::uint32_t>(exchange.value);
    joined = first ? value : join(joined, value);
    first = false;
  });
  ForEachLane(operands, mask, [joined](int, Exchange& exchange) { exchange.result = joined; });
}

}  // namespace

void CompleteShuffle(void* const* operands, std::uint32_t mask) {
  ForEachLane(operands, mask, [&](int, Exchange& exchange) {
    const int source = exchange.source_lane;
    const bool came = ((mask >> source) & 1u) != 0;
    exchange.result = came ? static_cast<const Exchange*>(operands[source])->value : kPoison;
  });
}

void CompleteBallot(void* const* operands, std::uint32_t mask) {
  std::uint32_t votes = 0;
  ForEachLane(operands, mask, [&votes](int lane, const Exchange& exchange) {
    votes |= exchange.value != 0 ? 1u << lane : 0u;
  });
  ForEachLane(operands, mask, [votes](int, Exchange& exchange) { exchange.result = votes; });
}

void CompleteMatch(void* const* operands, std::uint32_t mask) {
  ForEachLane(operands, mask, [&](int, Exchange& mine) {
    ForEachLane(operands, mask, [&mine](int lane, const Exchange& other) {
      mine.result |= other.value == mine.value ? 1u << lane : 0u;
    });
  });
}

void CompleteReduceAdd(void* const* operands, std::uint32_t mask) {
  Reduce(operands, mask, [](std::uint32_t a, std::uint32_t b) { return a + b; });
}

void CompleteReduceMinUnsigned(void* const* operands, std::uint32_t mask) {
  Reduce(operands, mask, [](std::uint32_t a, std::uint32_t b) { return std::min(a, b); });
}

void CompleteReduceMaxUnsigned(void* const* operands, std::uint32_t mask) {
  Reduce(operands, mask, [](std::uint32_t a, std::uint32_t b) { return std::max(a, b); });
}

void CompleteReduceMinSigned(void* const* operands, std::uint32_t mask) {
  Reduce(operands, mask, [](std::uint32_t a, std::uint32_t b) {
    return static_cast<std::int32_t>(a) < static_cast<std::int32_t>(b) ? a : b;
  });
}

void CompleteReduceMaxSigned(void* const* operands, std::uint32_t mask) {
  Reduce(operands, mask, [](std::uint32_t a, std::uint32_t b) {
    return static_cast<std::int32_t>(a) > static_cast<std::int32_t>(b) ? a : b;
  });
}

void CompleteReduceAnd(void* const* operands, std::uint32_t mask) {
  Reduce(operands, mask, [](std::uint32_t a, std::uint32_t b) { return a & b; });
}

void CompleteReduceOr(void* const* operands, std::uint32_t mask) {
  Reduce(operands, mask, [](std::uint32_t a, std::uint32_t b) { return a | b; });
}

void CompleteReduceXor(void* const* operands, std::uint32_t mask) {
  Reduce(operands, mask, [](std::uint32_t a, std::uint32_t b) { return a ^ b; });
}

}  // namespace baton::emulated
