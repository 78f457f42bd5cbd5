#include "kernels/cuda/step_runner.h"

#include <algorithm>
#include <bit>

#include "absl/cleanup/cleanup.h"
#include "common/status_macros.h"

namespace baton::cuda {
namespace {

// Whether `wanted` is absent or the very list of the step.
template <typename T>
bool IsOf(std::span<T> step, std::span<T> wanted) {
  return wanted.empty() || (wanted.data() == step.data() && wanted.size() == step.size());
}

bool AreOf(const StepInputs& step, const StepInputs& wanted) {
  return IsOf(step.tokens, wanted.tokens) && IsOf(step.rotation, wanted.rotation) &&
         IsOf(step.block, wanted.block) && IsOf(step.offset, wanted.offset) &&
         IsOf(step.logit_rows, wanted.logit_rows) && IsOf(step.segments, wanted.segments) &&
         IsOf(step.row_segments, wanted.row_segments) &&
         IsOf(step.entry_segment, wanted.entry_segment) && IsOf(step.delta, wanted.delta) &&
         IsOf(step.visible_tokens, wanted.visible_tokens);
}

// Each row is one sequence's next token and nobody looks in between.
bool IsRepeated(const StepInputs& inputs, int tile_rows) {
  return inputs.repeatable && inputs.logit_rows.size() == inputs.tokens.size() &&
         (tile_rows == 0 || !StepLists::HasRuns(inputs));
}

}  // namespace

AttentionLists DeviceLists::attention() const {
  return {.row_segments = at(StepList::kRowSegments),
          .entry_segment = at(StepList::kEntrySegment),
          .delta = at(StepList::kDelta),
          .visible_tokens = at(StepList::kVisibleTokens),
          .segment_blocks = at(StepList::kSegmentBlocks),
          .block_table = at(StepList::kBlockTable)};
}

absl::Status StepRunner::Reserve(std::size_t ints) {
  if (ints <= device_lists_.size()) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(stream_.Synchronize());
  RETURN_IF_ERROR(DropGraphs());
  host_lists_ = PinnedBuffer<int>();
  device_lists_ = DeviceBuffer<int>();
  ASSIGN_OR_RETURN(host_lists_, PinnedBuffer<int>::Create(device_, ints));
  ASSIGN_OR_RETURN(device_lists_, DeviceBuffer<int>::Create(device_, ints));
  if (!lists_read_) {
    ASSIGN_OR_RETURN(lists_read_, Event::Create(device_));
  }
  return absl::OkStatus();
}

int StepRunner::PaddedRows(const StepInputs& inputs, int tile_rows, int most_rows) {
  const int rows = static_cast<int>(inputs.tokens.size());
  if (rows == 0 || !IsRepeated(inputs, tile_rows)) {
    return rows;
  }
  const int bucket = static_cast<int>(std::bit_ceil(static_cast<unsigned>(rows)));
  return std::max(rows, std::min(bucket, most_rows));
}

absl::StatusOr<DeviceLists> StepRunner::Upload(const StepInputs& inputs,
                                               const StepRoom& room,
                                               int tile_rows) {
  const std::size_t ints = StepLists::SizeOf(inputs, room);
  if (ints > device_lists_.size()) {
    RETURN_IF_ERROR(Reserve(2 * ints));
  }
  RETURN_IF_ERROR(lists_read_.Synchronize());
  lists_.Pack(inputs, room, tile_rows, host_lists_.span());
  RETURN_IF_ERROR(device_.Copy({.destination = device_lists_.get(),
                                .source = host_lists_.get(),
                                .bytes = ints * sizeof(int),
                                .direction = CopyDirection::kHostToDevice},
                               stream_.get()));
  RETURN_IF_ERROR(lists_read_.Record(stream_));
  return DeviceLists{.base = device_lists_.data(), .lists = &lists_, .room = room};
}

absl::Status StepRunner::Run(const StepInputs& inputs,
                             int tile_rows,
                             absl::FunctionRef<absl::Status()> operations) {
  const bool repeated = IsRepeated(inputs, tile_rows);
  const StepRoom room = StepLists::RoomFor(inputs, tile_rows, repeated);
  ASSIGN_OR_RETURN(step_lists_, Upload(inputs, room, tile_rows));
  step_ = &inputs;
  step_tile_rows_ = tile_rows;
  const absl::Cleanup end = [this] { step_ = nullptr; };
  return repeated ? Repeat({inputs.program, inputs.pool.data, room}, operations) : operations();
}

absl::Status StepRunner::Repeat(const GraphKey& key, absl::FunctionRef<absl::Status()> operations) {
  if (!seen_.contains(key)) {
    RETURN_IF_ERROR(operations());
    seen_.insert(key);
    return absl::OkStatus();
  }
  auto graph = graphs_.find(key);
  if (graph == graphs_.end()) {
    capturing_ = true;
    absl::StatusOr<GraphExec> captured = GraphExec::Capture(device_, stream_, operations);
    capturing_ = false;
    RETURN_IF_ERROR(captured.status());
    graph = graphs_.emplace(key, *std::move(captured)).first;
  }
  return graph->second.Launch(stream_);
}

absl::StatusOr<DeviceLists> StepRunner::ListsFor(const StepInputs& wanted,
                                                 std::optional<int> tile_rows) {
  if (step_ == nullptr) {
    const int tiles = tile_rows.value_or(0);
    return Upload(wanted, StepLists::RoomFor(wanted, tiles, /*rounded=*/false), tiles);
  }
  if (!AreOf(*step_, wanted) || tile_rows.value_or(step_tile_rows_) != step_tile_rows_) {
    // The rest of the step would find its own lists gone.
    return absl::InternalError("an operation of a step has a list that is not the step's");
  }
  return step_lists_;
}

absl::Status StepRunner::DropGraphs() {
  if (capturing_) {
    return absl::FailedPreconditionError("memory of a step moves while the step is captured");
  }
  graphs_.clear();
  return absl::OkStatus();
}

}  // namespace baton::cuda
