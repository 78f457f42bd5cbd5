#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/handles.h"
#include "kernels/cuda/step_lists.h"
#include "kernels/ops.h"

namespace baton::cuda {

// The lists of one step or one operation on the device.
struct DeviceLists {
  const int* base = nullptr;
  const StepLists* lists = nullptr;
  StepRoom room;

  const int* at(StepList list) const { return base + lists->offset(list); }
  AttentionLists attention() const;
};

// Brings lists to the device by one copy a step, and repeats steps as graphs.
//
// Owns the buffers of the lists, which grow between steps, and the graphs, which go when the
// buffers move. Borrows device and stream, which must outlive it.
//
// Not thread-safe: used only by the engine thread.
class StepRunner {
 public:
  StepRunner(Device& device, const Stream& stream) : device_(device), stream_(stream) {}

  absl::Status Reserve(std::size_t ints);
  std::size_t bytes() const { return device_lists_.size_bytes(); }

  // Backend::PaddedRows. `most_rows`: of the program.
  static int PaddedRows(const StepInputs& inputs, int tile_rows, int most_rows);

  // Backend::RunStep. REQUIRES: valid inputs.
  absl::Status Run(const StepInputs& inputs,
                   int tile_rows,
                   absl::FunctionRef<absl::Status()> operations);

  // The lists that an operation is given, on the device: those of the step under way when they are
  // the same memory, else they are copied for this operation. `wanted` has no others.
  // `tile_rows`: where attention is cut; absent: the operation is not attention.
  absl::StatusOr<DeviceLists> ListsFor(const StepInputs& wanted, std::optional<int> tile_rows);

  // Memory that graphs may name has moved: they are captured anew. FAILED_PRECONDITION during a
  // capture.
  absl::Status DropGraphs();

 private:
  // Steps that ask for the same work on the same memory.
  using GraphKey = std::tuple<StepProgram, const std::byte*, StepRoom>;

  absl::StatusOr<DeviceLists> Upload(const StepInputs& inputs, const StepRoom& room, int tile_rows);
  absl::Status Repeat(const GraphKey& key, absl::FunctionRef<absl::Status()> operations);

  Device& device_;
  const Stream& stream_;
  PinnedBuffer<int> host_lists_;
  DeviceBuffer<int> device_lists_;
  Event lists_read_;  // the last copy from host_lists_ is done
  StepLists lists_;
  std::map<GraphKey, GraphExec> graphs_;
  std::set<GraphKey> seen_;  // ran once: what is chosen at a first time has been chosen
  bool capturing_ = false;
  // While a step runs.
  const StepInputs* step_ = nullptr;
  int step_tile_rows_ = 0;
  DeviceLists step_lists_;
};

}  // namespace baton::cuda
