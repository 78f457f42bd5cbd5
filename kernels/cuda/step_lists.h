#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <span>

#include "kernels/cuda/attention.h"
#include "kernels/ops.h"

namespace baton::cuda {

// The lists of a step as one array of ints that one copy brings to the device.
enum class StepList {
  kTokens,         // [T]
  kRotation,       // [T]
  kBlock,          // [T]
  kOffset,         // [T]
  kLogitRows,      // [R]
  kRowSegments,    // [T + 1]
  kDecodeRows,     // [T] rows of decode attention
  kTileFirstRow,   // [T] tiles of prefill attention
  kRowsOfTile,     // [T]
  kEntrySegment,   // [entries]
  kDelta,          // [entries]
  kVisibleTokens,  // [entries]
  kSegmentBlocks,  // [segments] where in kBlockTable a segment begins
  kBlockTable,     // blocks of all segments; last, so that its length moves nothing
};
inline constexpr std::size_t kStepLists = 14;

// How much room each list has. Steps with equal room have every list at the same place, which is
// what a captured graph needs.
struct StepRoom {
  int rows = 0;
  int logit_rows = 0;
  int entries = 0;
  int segments = 0;
  int splits = 1;  // of the grid of decode attention

  friend auto operator<=>(const StepRoom&, const StepRoom&) = default;
};

// What attention is cut into; the same in every layer.
struct AttentionPlan {
  int decode_rows = 0;
  int tiles = 0;
};

// Puts the lists of a step in order. Keeps no list; of its own only the plan.
//
// Not thread-safe.
class StepLists {
 public:
  // Room for these inputs. `rounded`: entries, segments and splits up to sizes that other steps
  // share. `tile_rows`: as in Pack. REQUIRES: lists that Validate accepts.
  static StepRoom RoomFor(const StepInputs& inputs, int tile_rows, bool rounded);
  // Ints that the array needs.
  static std::size_t SizeOf(const StepInputs& inputs, const StepRoom& room);
  // Whether some neighbouring rows have the same list of segments.
  static bool HasRuns(const StepInputs& inputs);

  // Writes the array, and the plan of attention. `tile_rows`: the most rows of a tile; 0: no tiles.
  void Pack(const StepInputs& inputs, const StepRoom& room, int tile_rows, std::span<int> out);

  const AttentionPlan& plan() const { return plan_; }
  std::size_t offset(StepList list) const { return offsets_[static_cast<std::size_t>(list)]; }

 private:
  void PackAttentionPlan(const StepInputs& inputs, int tile_rows, std::span<int> out);

  std::array<std::size_t, kStepLists> offsets_{};
  AttentionPlan plan_;
};

}  // namespace baton::cuda
