#pragma once

#include <cstddef>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/handles.h"
#include "kernels/cuda/sampling.h"
#include "kernels/select_tokens.h"

namespace baton::cuda {

// SelectTokens on a device: parameters and edits go over in one copy, the kernel runs, results come
// back in one copy and are waited for.
//
// Owns the buffers of all that, which grow when a call needs more than any before. Borrows device
// and stream, which must outlive it. Not thread-safe: used only by the engine thread.
class TokenChoice {
 public:
  TokenChoice(Device& device, const Stream& stream) : device_(device), stream_(stream) {}

  // Takes the memory for calls of so many rows, so that they need no more unless histories or lists
  // of alternatives are long.
  absl::Status Reserve(int rows, int vocabulary);

  // REQUIRES: arguments validated.
  absl::Status Select(const SelectTokensArgs& args);

  std::size_t bytes() const;

 private:
  // The rows' parameters and edits in host memory.
  void MakeRows(const SelectTokensArgs& args);
  void MakeEdits(const TokenSelection& selection);
  LogitEdit& EditOf(TokenId token);

  // Puts everything on the stream.
  absl::Status Ask(const SelectTokensArgs& args, int most_alternatives, std::size_t output_bytes);
  absl::Status Upload();
  absl::Status Launch(const SelectTokensArgs& args, int most_alternatives);
  absl::Status Report(const SelectTokensArgs& args, int most_alternatives) const;

  Device& device_;
  const Stream& stream_;
  std::vector<SamplingRow> rows_;
  std::vector<LogitEdit> edits_;
  absl::flat_hash_map<TokenId, std::size_t> edit_of_token_;  // of the row being made

  // Rows, then edits; and results, then alternatives: [R] results, [R, A] tokens, [R, A] logprobs.
  PinnedBuffer<std::byte> host_input_;
  DeviceBuffer<std::byte> input_;
  PinnedBuffer<std::byte> host_output_;
  DeviceBuffer<std::byte> output_;
  DeviceBuffer<float> scratch_;
};

}  // namespace baton::cuda
