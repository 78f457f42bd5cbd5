#include "model/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/element_type.h"
#include "model/fingerprint.h"
#include "model/model_parts.h"

namespace baton {
namespace {

absl::StatusOr<ModelParts> Load(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (error && status.type() == std::filesystem::file_type::none) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("open ", path));
  }
  switch (status.type()) {
    case std::filesystem::file_type::not_found:
      return absl::NotFoundError(absl::StrCat(path, ": no such file or directory"));
    case std::filesystem::file_type::directory:
      return LoadHuggingFace(path);
    case std::filesystem::file_type::regular:
      return LoadGguf(path);
    default:
      return absl::InvalidArgumentError(absl::StrCat(path, ": neither a file nor a directory"));
  }
}

Digest FingerprintOf(const ModelParts& parts, const std::string& cache_folder) {
  std::vector<const MappedFile*> files;
  files.reserve(parts.files.size());
  for (const MappedFile& file : parts.files) {
    files.push_back(&file);
  }
  std::sort(files.begin(), files.end(),
            [](const MappedFile* a, const MappedFile* b) { return a->path() < b->path(); });
  std::vector<Digest> digests;
  digests.reserve(files.size());
  for (const MappedFile* file : files) {
    digests.push_back(FileDigest(*file, cache_folder));
  }
  return ModelFingerprint(parts.tensors, digests);
}

// The row of a GGUF query or key weight that holds row `row` in half-split order. Inside a head of
// D rows, half h and pair i is row h * D/2 + i here and row 2i + h there.
int AdjacentPairRow(int row, int head_dim) {
  const int in_head = row % head_dim;
  const int half = in_head / (head_dim / 2);
  const int pair = in_head % (head_dim / 2);
  return row - in_head + 2 * pair + half;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path,
                                                             const std::string& cache_folder) {
  ASSIGN_OR_RETURN(ModelParts parts, Load(path));
  auto tokenizer = Tokenizer::Create(std::move(parts.tokenizer));
  RETURN_IF_ERROR(AtPlace(parts.tokenizer_place, tokenizer.status()));
  ChatFormat chat_format = ChatFormat::FromTemplate(parts.chat_template);
  const Digest fingerprint = FingerprintOf(parts, cache_folder);
  return std::unique_ptr<Checkpoint>(new Checkpoint(std::make_unique<ModelParts>(std::move(parts)),
                                                    *std::move(tokenizer), std::move(chat_format),
                                                    fingerprint));
}

Checkpoint::Checkpoint(std::unique_ptr<ModelParts> parts,
                       std::unique_ptr<Tokenizer> tokenizer,
                       ChatFormat chat_format,
                       const Digest& fingerprint)
    : parts_(std::move(parts)),
      tokenizer_(std::move(tokenizer)),
      chat_format_(std::move(chat_format)),
      fingerprint_(fingerprint) {}

Checkpoint::~Checkpoint() = default;

const ModelConfig& Checkpoint::config() const {
  return parts_->config;
}

WeightShape Checkpoint::Shape(WeightKind kind) const {
  return ShapeOf(parts_->config, kind);
}

absl::Status Checkpoint::ReadRows(
    WeightKind kind, LayerIndex layer, int first_row, int count, std::span<float> out) const {
  const ModelConfig& config = parts_->config;
  const WeightShape shape = Shape(kind);
  if (IsPerLayer(kind) && layer.value() >= static_cast<std::uint32_t>(config.layers)) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer.value(), " of a model with ", config.layers, " layers"));
  }
  if (first_row < 0 || count < 0 || first_row > shape.rows - count) {
    return absl::InvalidArgumentError(absl::StrCat("rows ", first_row, " to ", first_row, " + ",
                                                   count, " of a weight with ", shape.rows,
                                                   " rows"));
  }
  const auto columns = static_cast<std::size_t>(shape.columns);
  if (out.size() != static_cast<std::size_t>(count) * columns) {
    return absl::InvalidArgumentError(
        absl::StrCat("space for ", out.size(), " values, not for ", count, " rows of ", columns));
  }
  const StoredTensor& tensor = parts_->weights.Get({.kind = kind, .layer = layer});
  const std::size_t row_bytes = tensor.bytes.size() / static_cast<std::size_t>(shape.rows);
  const bool reorder = parts_->rotary_order == RotaryOrder::kAdjacentPairs &&
                       (kind == WeightKind::kQuery || kind == WeightKind::kKey);
  for (int i = 0; i < count; ++i) {
    const int row = reorder ? AdjacentPairRow(first_row + i, config.head_dim) : first_row + i;
    const std::size_t begin = static_cast<std::size_t>(row) * row_bytes;
    const std::span<float> values = out.subspan(static_cast<std::size_t>(i) * columns, columns);
    Dequantize(tensor.type, tensor.bytes.substr(begin, row_bytes), values);
    if (!std::all_of(values.begin(), values.end(),
                     [](float value) { return std::isfinite(value); })) {
      FilePlace place = tensor.Place();
      place.offset += begin;
      return AtPlace(place,
                     absl::DataLossError(absl::StrCat("a value of row ", row, " is not finite")));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton
