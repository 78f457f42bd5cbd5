#include "kernels/cuda/token_choice.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace baton::cuda {
namespace {

// Rows that one launch takes: bounds the scratch, which holds their logits.
constexpr int kRowsAtOnce = 64;
constexpr int kUsualAlternatives = 20;
constexpr int kUsualEditsOfRow = 64;

std::size_t Size(int count) {
  return static_cast<std::size_t>(count);
}

std::size_t OutputBytes(int rows, int alternatives) {
  return Size(rows) * (sizeof(SamplingResult) + Size(alternatives) * (sizeof(int) + sizeof(float)));
}

bool HasPenalty(const TokenSelection& row) {
  return row.repetition_penalty != 1 || row.frequency_penalty != 0 || row.presence_penalty != 0;
}

// At least so many elements, with room for a few more; what is there is kept if it suffices.
// Contents are lost.
template <typename Buffer>
absl::Status Grow(Device& device, const Stream& stream, std::size_t count, Buffer& buffer) {
  if (count <= buffer.size()) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(stream.Synchronize());
  buffer = Buffer();
  ASSIGN_OR_RETURN(buffer, Buffer::Create(device, count + count / 2));
  return absl::OkStatus();
}

}  // namespace

absl::Status TokenChoice::Reserve(int rows, int vocabulary) {
  const std::size_t input_bytes =
      Size(rows) * (sizeof(SamplingRow) + Size(kUsualEditsOfRow) * sizeof(LogitEdit));
  const std::size_t output_bytes = OutputBytes(rows, kUsualAlternatives);
  RETURN_IF_ERROR(Grow(device_, stream_, input_bytes, host_input_));
  RETURN_IF_ERROR(Grow(device_, stream_, input_bytes, input_));
  RETURN_IF_ERROR(Grow(device_, stream_, output_bytes, host_output_));
  RETURN_IF_ERROR(Grow(device_, stream_, output_bytes, output_));
  const std::size_t scratch = Size(std::min(rows, kRowsAtOnce)) * Size(vocabulary);
  if (scratch > scratch_.size()) {  // exactly: it is large
    RETURN_IF_ERROR(stream_.Synchronize());
    scratch_ = DeviceBuffer<float>();
    ASSIGN_OR_RETURN(scratch_, DeviceBuffer<float>::Create(device_, scratch));
  }
  return absl::OkStatus();
}

std::size_t TokenChoice::bytes() const {
  return input_.size_bytes() + output_.size_bytes() + scratch_.size_bytes();
}

LogitEdit& TokenChoice::EditOf(TokenId token) {
  const auto [found, is_new] = edit_of_token_.try_emplace(token, edits_.size());
  if (is_new) {
    edits_.push_back({.token = static_cast<int>(token.value())});
  }
  return edits_[found->second];
}

void TokenChoice::MakeEdits(const TokenSelection& selection) {
  edit_of_token_.clear();
  if (HasPenalty(selection)) {
    for (std::size_t i = 0; i < selection.history.size(); ++i) {
      LogitEdit& edit = EditOf(selection.history[i]);
      edit.in_history = 1;
      edit.output_count += i >= Size(selection.prompt_tokens) ? 1 : 0;
    }
  }
  for (const LogitBias& bias : selection.logit_bias) {
    EditOf(bias.token).bias += bias.bias;
  }
  for (const TokenId token : selection.banned) {
    EditOf(token).banned = 1;
  }
}

void TokenChoice::MakeRows(const SelectTokensArgs& args) {
  rows_.clear();
  edits_.clear();
  for (const TokenSelection& selection : args.rows) {
    const int first_edit = static_cast<int>(edits_.size());
    if (!selection.forced.has_value()) {
      MakeEdits(selection);
    }
    rows_.push_back(
        {.temperature = selection.temperature,
         .top_p = selection.top_p,
         .min_p = selection.min_p,
         .top_k = selection.top_k,
         .repetition_penalty = selection.repetition_penalty,
         .frequency_penalty = selection.frequency_penalty,
         .presence_penalty = selection.presence_penalty,
         .first_edit = first_edit,
         .end_edit = static_cast<int>(edits_.size()),
         .forced = selection.forced.has_value() ? static_cast<int>(selection.forced->value()) : -1,
         .logprobs = selection.logprobs.value_or(-1),
         .seed = selection.seed,
         .position = selection.position});
  }
}

absl::Status TokenChoice::Select(const SelectTokensArgs& args) {
  if (args.rows.empty()) {
    return absl::OkStatus();
  }
  MakeRows(args);
  int most_alternatives = 0;
  for (const SamplingRow& row : rows_) {
    most_alternatives = std::max(most_alternatives, row.logprobs);
  }
  const int rows = static_cast<int>(rows_.size());
  const std::size_t input_bytes =
      rows_.size() * sizeof(SamplingRow) + edits_.size() * sizeof(LogitEdit);
  RETURN_IF_ERROR(Reserve(rows, args.logits.extent(1)));
  RETURN_IF_ERROR(Grow(device_, stream_, input_bytes, host_input_));
  RETURN_IF_ERROR(Grow(device_, stream_, input_bytes, input_));
  const std::size_t output_bytes = OutputBytes(rows, most_alternatives);
  RETURN_IF_ERROR(Grow(device_, stream_, output_bytes, host_output_));
  RETURN_IF_ERROR(Grow(device_, stream_, output_bytes, output_));

  const absl::Status asked = Ask(args, most_alternatives, output_bytes);
  // Whatever was asked for is over before the pinned memory is used again.
  RETURN_IF_ERROR(stream_.Synchronize());
  RETURN_IF_ERROR(asked);
  return Report(args, most_alternatives);
}

absl::Status TokenChoice::Ask(const SelectTokensArgs& args,
                              int most_alternatives,
                              std::size_t output_bytes) {
  RETURN_IF_ERROR(Upload());
  RETURN_IF_ERROR(Launch(args, most_alternatives));
  return device_.Copy({.destination = host_output_.data(),
                       .source = output_.data(),
                       .bytes = output_bytes,
                       .direction = CopyDirection::kDeviceToHost},
                      stream_.get());
}

absl::Status TokenChoice::Upload() {
  const std::size_t row_bytes = rows_.size() * sizeof(SamplingRow);
  const std::size_t edit_bytes = edits_.size() * sizeof(LogitEdit);
  std::memcpy(host_input_.data(), rows_.data(), row_bytes);
  if (edit_bytes > 0) {
    std::memcpy(host_input_.data() + row_bytes, edits_.data(), edit_bytes);
  }
  return device_.Copy({.destination = input_.data(),
                       .source = host_input_.data(),
                       .bytes = row_bytes + edit_bytes,
                       .direction = CopyDirection::kHostToDevice},
                      stream_.get());
}

absl::Status TokenChoice::Launch(const SelectTokensArgs& args, int most_alternatives) {
  const int rows = static_cast<int>(rows_.size());
  const auto* const device_rows = reinterpret_cast<const SamplingRow*>(input_.data());
  const auto* const device_edits = reinterpret_cast<const LogitEdit*>(device_rows + rows_.size());
  auto* const results = reinterpret_cast<SamplingResult*>(output_.data());
  auto* const tokens = reinterpret_cast<int*>(results + rows_.size());
  auto* const logprobs = reinterpret_cast<float*>(tokens + rows_.size() * Size(most_alternatives));
  for (int first = 0; first < rows; first += kRowsAtOnce) {
    const int alternatives = first * most_alternatives;
    const LaunchCode code =
        device_.kernels().select_tokens({.logits = args.logits.Row(first),
                                         .logits_stride = args.logits.row_stride(),
                                         .vocabulary = args.logits.extent(1),
                                         .rows = device_rows + first,
                                         .edits = device_edits,
                                         .row_count = std::min(kRowsAtOnce, rows - first),
                                         .most_alternatives = most_alternatives,
                                         .results = results + first,
                                         .alternative_tokens = tokens + alternatives,
                                         .alternative_logprobs = logprobs + alternatives,
                                         .scratch = scratch_.data()},
                                        stream_.get());
    RETURN_IF_ERROR(device_.ToStatus(code, "select_tokens"));
  }
  return absl::OkStatus();
}

absl::Status TokenChoice::Report(const SelectTokensArgs& args, int most_alternatives) const {
  const auto* const results = reinterpret_cast<const SamplingResult*>(host_output_.data());
  const auto* const tokens = reinterpret_cast<const int*>(results + rows_.size());
  const auto* const logprobs =
      reinterpret_cast<const float*>(tokens + rows_.size() * Size(most_alternatives));
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    switch (results[r].error) {
      case SamplingError::kNone:
        break;
      case SamplingError::kNotFinite:
        return absl::InternalError("select_tokens: a logit is not a number");
      case SamplingError::kNoPossibleToken:
        return absl::InternalError("select_tokens: no token is possible");
    }
    SelectedToken& selected = args.selected[r];
    selected = {.token = TokenId(static_cast<std::uint32_t>(results[r].token))};
    if (rows_[r].logprobs < 0) {
      continue;
    }
    selected.logprob = results[r].logprob;
    for (std::size_t i = 0; i < Size(rows_[r].logprobs); ++i) {
      const std::size_t at = r * Size(most_alternatives) + i;
      selected.alternatives.push_back(
          {.token = TokenId(static_cast<std::uint32_t>(tokens[at])), .logprob = logprobs[at]});
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::cuda
