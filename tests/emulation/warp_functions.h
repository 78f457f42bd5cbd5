#pragma once

#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>

#include "tests/emulation/runtime.h"

// CUDA's barriers, shuffles, votes and reductions under their own names, for kernels.
namespace baton::emulated {

// What a lane brings to an exchange and takes from it. Filled and emptied by the lane, moved by the
// runtime.
struct Exchange {
  std::uint64_t value = 0;
  int source_lane = 0;
  std::uint64_t result = 0;
};

// The functions below fill every result. `mask` has the lanes that came: those of the kernel's mask
// that have not ended.

// result = value of source_lane; poison when that lane did not come, as CUDA leaves it undefined.
void CompleteShuffle(void* const* operands, std::uint32_t mask);
// result = the lanes whose value is not 0.
void CompleteBallot(void* const* operands, std::uint32_t mask);
// result = the lanes whose value equals this lane's.
void CompleteMatch(void* const* operands, std::uint32_t mask);
void CompleteReduceAdd(void* const* operands, std::uint32_t mask);
void CompleteReduceMinUnsigned(void* const* operands, std::uint32_t mask);
void CompleteReduceMaxUnsigned(void* const* operands, std::uint32_t mask);
void CompleteReduceMinSigned(void* const* operands, std::uint32_t mask);
void CompleteReduceMaxSigned(void* const* operands, std::uint32_t mask);
void CompleteReduceAnd(void* const* operands, std::uint32_t mask);
void CompleteReduceOr(void* const* operands, std::uint32_t mask);
void CompleteReduceXor(void* const* operands, std::uint32_t mask);

template <class T>
concept Shuffled = std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(std::uint64_t);

template <Shuffled T>
T Shuffle(unsigned mask, T value, int source_lane, const std::source_location& where) {
  Exchange exchange;
  std::memcpy(&exchange.value, &value, sizeof(T));
  exchange.source_lane = source_lane;
  WarpCollective(mask, &CompleteShuffle, &exchange, where);
  T result;
  std::memcpy(&result, &exchange.result, sizeof(T));
  return result;
}

inline std::uint64_t Meet(unsigned mask,
                          std::uint64_t value,
                          Complete complete,
                          const std::source_location& where) {
  Exchange exchange{.value = value};
  WarpCollective(mask, complete, &exchange, where);
  return exchange.result;
}

}  // namespace baton::emulated

// The place of a call is part of a barrier: threads that wait at two different ones diverge.
using EmulatedPlace = std::source_location;

inline void __syncthreads(EmulatedPlace place = EmulatedPlace::current()) {
  baton::emulated::BlockBarrier(false, place);
}
inline int __syncthreads_count(int vote, EmulatedPlace place = EmulatedPlace::current()) {
  return baton::emulated::BlockBarrier(vote != 0, place);
}
inline int __syncthreads_or(int vote, EmulatedPlace place = EmulatedPlace::current()) {
  return baton::emulated::BlockBarrier(vote != 0, place) > 0 ? 1 : 0;
}
inline int __syncthreads_and(int vote, EmulatedPlace place = EmulatedPlace::current()) {
  return baton::emulated::BlockBarrier(vote == 0, place) == 0 ? 1 : 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffu,
                       EmulatedPlace place = EmulatedPlace::current()) {
  baton::emulated::WarpBarrier(mask, place);
}

// A shuffle within groups of `width` lanes, a power of two, as CUDA's.
template <class T>
T __shfl_sync(unsigned mask,
              T value,
              int source,
              int width = 32,
              EmulatedPlace place = EmulatedPlace::current()) {
  const int lane = baton::emulated::current_thread->lane;
  const int first = lane & ~(width - 1);
  return baton::emulated::Shuffle(mask, value, first + (source & (width - 1)), place);
}
template <class T>
T __shfl_xor_sync(unsigned mask,
                  T value,
                  int lanes,
                  int width = 32,
                  EmulatedPlace place = EmulatedPlace::current()) {
  const int lane = baton::emulated::current_thread->lane;
  const int source = lane ^ lanes;
  const bool inside =
      source <= (lane | (width - 1));  // groups before this one can be read, as on a GPU
  return baton::emulated::Shuffle(mask, value, inside ? source : lane, place);
}
template <class T>
T __shfl_up_sync(unsigned mask,
                 T value,
                 unsigned lanes,
                 int width = 32,
                 EmulatedPlace place = EmulatedPlace::current()) {
  const int lane = baton::emulated::current_thread->lane;
  const int source = lane - static_cast<int>(lanes);
  const bool inside = source >= (lane & ~(width - 1));
  return baton::emulated::Shuffle(mask, value, inside ? source : lane, place);
}
template <class T>
T __shfl_down_sync(unsigned mask,
                   T value,
                   unsigned lanes,
                   int width = 32,
                   EmulatedPlace place = EmulatedPlace::current()) {
  const int lane = baton::emulated::current_thread->lane;
  const int source = lane + static_cast<int>(lanes);
  const bool inside = source <= (lane | (width - 1));
  return baton::emulated::Shuffle(mask, value, inside ? source : lane, place);
}

inline unsigned __ballot_sync(unsigned mask,
                              int vote,
                              EmulatedPlace place = EmulatedPlace::current()) {
  return static_cast<unsigned>(
      baton::emulated::Meet(mask, vote != 0 ? 1 : 0, &baton::emulated::CompleteBallot, place));
}
inline int __any_sync(unsigned mask, int vote, EmulatedPlace place = EmulatedPlace::current()) {
  return __ballot_sync(mask, vote, place) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int vote, EmulatedPlace place = EmulatedPlace::current()) {
  return __ballot_sync(mask, vote == 0 ? 1 : 0, place) == 0 ? 1 : 0;
}
template <baton::emulated::Shuffled T>
unsigned __match_any_sync(unsigned mask, T value, EmulatedPlace place = EmulatedPlace::current()) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return static_cast<unsigned>(
      baton::emulated::Meet(mask, bits, &baton::emulated::CompleteMatch, place));
}

inline unsigned __reduce_add_sync(unsigned mask,
                                  unsigned value,
                                  EmulatedPlace place = EmulatedPlace::current()) {
  return static_cast<unsigned>(
      baton::emulated::Meet(mask, value, &baton::emulated::CompleteReduceAdd, place));
}
inline int __reduce_add_sync(unsigned mask,
                             int value,
                             EmulatedPlace place = EmulatedPlace::current()) {
  return static_cast<int>(__reduce_add_sync(mask, static_cast<unsigned>(value), place));
}
inline unsigned __reduce_min_sync(unsigned mask,
                                  unsigned value,
                                  EmulatedPlace place = EmulatedPlace::current()) {
  return static_cast<unsigned>(
      baton::emulated::Meet(mask, value, &baton::emulated::CompleteReduceMinUnsigned, place));
}
inline unsigned __reduce_max_sync(unsigned mask,
                                  unsigned value,
                                  EmulatedPlace place = EmulatedPlace::current()) {
  return static_cast<unsigned>(
      baton::emulated::Meet(mask, value, &baton::emulated::CompleteReduceMaxUnsigned, place));
}
inline int __reduce_min_sync(unsigned mask,
                             int value,
                             EmulatedPlace place = EmulatedPlace::current()) {
  return static_cast<int>(baton::emulated::Meet(mask, static_cast<unsigned>(value),
                                                &baton::emulated::CompleteReduceMinSigned, place));
}
inline int __reduce_max_sync(unsigned mask,
                             int value,
                             EmulatedPlace place = EmulatedPlace::current()) {
  return static_cast<int>(baton::emulated::Meet(mask, static_cast<unsigned>(value),
                                                &baton::emulated::CompleteReduceMaxSigned, place));
}
inline unsigned __reduce_and_sync(unsigned mask,
                                  unsigned value,
                                  EmulatedPlace place = EmulatedPlace::current()) {
  return static_cast<unsigned>(
      baton::emulated::Meet(mask, value, &baton::emulated::CompleteReduceAnd, place));
}
inline unsigned __reduce_or_sync(unsigned mask,
                                 unsigned value,
                                 EmulatedPlace place = EmulatedPlace::current()) {
  return static_cast<unsigned>(
      baton::emulated::Meet(mask, value, &baton::emulated::CompleteReduceOr, place));
}
inline unsigned __reduce_xor_sync(unsigned mask,
                                  unsigned value,
                                  EmulatedPlace place = EmulatedPlace::current()) {
  return static_cast<unsigned>(
      baton::emulated::Meet(mask, value, &baton::emulated::CompleteReduceXor, place));
}
