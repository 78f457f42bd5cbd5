#pragma once

// Bugs that tests/emulation compiles into the kernels, one at a time, to prove that the tests and
// the emulator would see them. All are off unless BATON_PLANT_... is defined, and then cost
// nothing.
namespace baton::BATON_CUDA_NAMESPACE {

// Decode: the warps' sums are merged without waiting for all warps.
#ifdef BATON_PLANT_MISSING_MERGE_BARRIER
inline constexpr bool kPlantMissingMergeBarrier = true;
#else
inline constexpr bool kPlantMissingMergeBarrier = false;
#endif

// Decode: a barrier that only some threads reach.
#ifdef BATON_PLANT_DIVERGENT_BARRIER
inline constexpr bool kPlantDivergentBarrier = true;
#else
inline constexpr bool kPlantDivergentBarrier = false;
#endif

// Prefill: a warp reads a stage when its own copies have landed, the others' perhaps not.
#ifdef BATON_PLANT_EARLY_READ
inline constexpr bool kPlantEarlyRead = true;
#else
inline constexpr bool kPlantEarlyRead = false;
#endif

// Prefill: a stage is filled again while slower warps still read it.
#ifdef BATON_PLANT_LOOP_END_BARRIER
inline constexpr bool kPlantLoopEndBarrier = true;
#else
inline constexpr bool kPlantLoopEndBarrier = false;
#endif

// Prefill: one group of copies too many may still be in flight.
#ifdef BATON_PLANT_WAIT_COUNT
inline constexpr int kPlantWaitCount = 1;
#else
inline constexpr int kPlantWaitCount = 0;
#endif

// Prefill: the halves of a key fragment are exchanged.
#ifdef BATON_PLANT_SWAPPED_FRAGMENTS
inline constexpr bool kPlantSwappedFragments = true;
#else
inline constexpr bool kPlantSwappedFragments = false;
#endif

// Both: the entry behind the right one in the block table is read.
#ifdef BATON_PLANT_PAST_BLOCK_TABLE
inline constexpr int kPlantPastBlockTable = 1;
#else
inline constexpr int kPlantPastBlockTable = 0;
#endif

}  // namespace baton::BATON_CUDA_NAMESPACE
