#include "kernels/cuda/step_lists.h"

#include <algorithm>
#include <bit>

namespace baton::cuda {
namespace {

using Offsets = std::array<std::size_t, kStepLists>;

std::size_t Size(int count) {
  return static_cast<std::size_t>(count);
}

Offsets OffsetsOf(const StepRoom& room) {
  Offsets offsets{};
  std::size_t end = 0;
  const auto take = [&](StepList list, std::size_t count) {
    offsets[static_cast<std::size_t>(list)] = end;
    end += (count + 3) / 4 * 4;  // each list aligned to 16 bytes
  };
  for (const StepList list :
       {StepList::kTokens, StepList::kRotation, StepList::kBlock, StepList::kOffset}) {
    take(list, Size(room.rows));
  }
  take(StepList::kLogitRows, Size(room.logit_rows));
  take(StepList::kRowSegments, Size(room.rows) + 1);
  for (const StepList list :
       {StepList::kDecodeRows, StepList::kTileFirstRow, StepList::kRowsOfTile}) {
    take(list, Size(room.rows));
  }
  for (const StepList list :
       {StepList::kEntrySegment, StepList::kDelta, StepList::kVisibleTokens}) {
    take(list, Size(room.entries));
  }
  take(StepList::kSegmentBlocks, Size(room.segments));
  take(StepList::kBlockTable, 0);
  return offsets;
}

std::span<const int> SegmentsOf(const StepInputs& inputs, std::size_t row) {
  const int first = inputs.row_segments[row];
  return inputs.entry_segment.subspan(Size(first), Size(inputs.row_segments[row + 1] - first));
}

int VisibleTokensOf(const StepInputs& inputs, std::size_t row) {
  int visible = 0;
  for (int e = inputs.row_segments[row]; e < inputs.row_segments[row + 1]; ++e) {
    visible += inputs.visible_tokens[Size(e)];
  }
  return visible;
}

// Rows of attention: there are none in a call of another operation.
std::size_t AttentionRows(const StepInputs& inputs) {
  return inputs.row_segments.empty() ? 0 : inputs.row_segments.size() - 1;
}

bool ContinuesRun(const StepInputs& inputs, std::size_t row) {
  return row > 0 && !SegmentsOf(inputs, row).empty() &&
         std::ranges::equal(SegmentsOf(inputs, row - 1), SegmentsOf(inputs, row));
}

bool IsInRun(const StepInputs& inputs, std::size_t row) {
  return ContinuesRun(inputs, row) ||
         (row + 1 < AttentionRows(inputs) && ContinuesRun(inputs, row + 1));
}

int RoundedUp(int count) {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max(count, 1))));
}

// 1, 4, 16 or 64: few, since each is a graph of its own.
int RoundedSplits(int splits) {
  int rounded = 1;
  while (rounded < splits) {
    rounded *= 4;
  }
  return std::min(rounded, kMaxSplits);
}

}  // namespace

StepRoom StepLists::RoomFor(const StepInputs& inputs, int tile_rows, bool rounded) {
  int splits = 1;
  for (std::size_t row = 0; row < AttentionRows(inputs); ++row) {
    if (tile_rows == 0 || !IsInRun(inputs, row)) {
      splits = std::max(splits, SplitsFor(VisibleTokensOf(inputs, row)));
    }
  }
  const std::size_t rows =
      std::max({inputs.tokens.size(), inputs.block.size(), AttentionRows(inputs)});
  StepRoom room{.rows = static_cast<int>(rows),
                .logit_rows = static_cast<int>(inputs.logit_rows.size()),
                .entries = static_cast<int>(inputs.entry_segment.size()),
                .segments = static_cast<int>(inputs.segments.size()),
                .splits = RoundedSplits(splits)};
  if (rounded) {
    room.entries = RoundedUp(room.entries);
    room.segments = RoundedUp(room.segments);
  }
  return room;
}

std::size_t StepLists::SizeOf(const StepInputs& inputs, const StepRoom& room) {
  std::size_t blocks = 0;
  for (const SegmentRef& segment : inputs.segments) {
    blocks += segment.blocks.size();
  }
  return OffsetsOf(room)[static_cast<std::size_t>(StepList::kBlockTable)] + blocks;
}

bool StepLists::HasRuns(const StepInputs& inputs) {
  for (std::size_t row = 1; row < AttentionRows(inputs); ++row) {
    if (ContinuesRun(inputs, row)) {
      return true;
    }
  }
  return false;
}

void StepLists::Pack(const StepInputs& inputs,
                     const StepRoom& room,
                     int tile_rows,
                     std::span<int> out) {
  offsets_ = OffsetsOf(room);
  const auto put = [&](StepList list, const auto& values, const auto& convert) {
    std::ranges::transform(values, out.begin() + static_cast<std::ptrdiff_t>(offset(list)),
                           convert);
  };
  const auto same = [](int value) { return value; };
  // Idle tokens and blocks become -1.
  const auto number = [](auto id) { return static_cast<int>(id.value()); };
  put(StepList::kTokens, inputs.tokens, number);
  put(StepList::kRotation, inputs.rotation, same);
  put(StepList::kBlock, inputs.block, number);
  put(StepList::kOffset, inputs.offset, same);
  put(StepList::kLogitRows, inputs.logit_rows, same);
  put(StepList::kRowSegments, inputs.row_segments, same);
  put(StepList::kEntrySegment, inputs.entry_segment, same);
  put(StepList::kDelta, inputs.delta, same);
  put(StepList::kVisibleTokens, inputs.visible_tokens, same);
  std::size_t block = offset(StepList::kBlockTable);
  std::size_t segment = offset(StepList::kSegmentBlocks);
  for (const SegmentRef& each : inputs.segments) {
    out[segment++] = static_cast<int>(block - offset(StepList::kBlockTable));
    for (const BlockId id : each.blocks) {
      out[block++] = number(id);
    }
  }
  PackAttentionPlan(inputs, tile_rows, out);
}

void StepLists::PackAttentionPlan(const StepInputs& inputs, int tile_rows, std::span<int> out) {
  plan_ = {};
  const std::size_t rows = AttentionRows(inputs);
  for (std::size_t first = 0; first < rows;) {
    std::size_t end = first + 1;
    while (end < rows && ContinuesRun(inputs, end)) {
      ++end;
    }
    if (end - first == 1 || tile_rows == 0) {
      for (; first < end; ++first) {
        out[offset(StepList::kDecodeRows) + Size(plan_.decode_rows++)] = static_cast<int>(first);
      }
    }
    while (first < end) {
      const std::size_t count = std::min(end - first, Size(tile_rows));
      out[offset(StepList::kTileFirstRow) + Size(plan_.tiles)] = static_cast<int>(first);
      out[offset(StepList::kRowsOfTile) + Size(plan_.tiles)] = static_cast<int>(count);
      ++plan_.tiles;
      first += count;
    }
  }
}

}  // namespace baton::cuda
