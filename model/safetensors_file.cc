#include "model/safetensors_file.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/byte_io.h"
#include "common/checked_math.h"
#include "common/status_macros.h"
#include "model/json_document.h"

namespace baton {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kLongestHeader = 100'000'000;
constexpr std::size_t kHighestRank = 8;

std::optional<ElementType> ElementTypeFromSafetensors(const std::string& dtype) {
  for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kBF16}) {
    if (dtype == NameOf(type)) {
      return type;
    }
  }
  return std::nullopt;
}

// `value[key]` when it is an array of `count` unsigned integers (any number of them without
// `count`).
std::optional<std::vector<std::uint64_t>> ReadIntegers(const nlohmann::json& value,
                                                       const char* key,
                                                       std::optional<std::size_t> count) {
  const auto found = value.find(key);
  if (found == value.end() || !found->is_array() ||
      (count.has_value() && found->size() != *count)) {
    return std::nullopt;
  }
  std::vector<std::uint64_t> integers;
  for (const nlohmann::json& element : *found) {
    if (!element.is_number_unsigned()) {
      return std::nullopt;
    }
    integers.push_back(element.get<std::uint64_t>());
  }
  return integers;
}

absl::Status CheckMetadata(const nlohmann::json& metadata, const FilePlace& place) {
  if (!metadata.is_object()) {
    return DamagedFile(place, "not an object");
  }
  for (const nlohmann::json& value : metadata) {
    if (!value.is_string()) {
      return DamagedFile(place, "a value that is not a string");
    }
  }
  return absl::OkStatus();
}

// One entry of the header; `data` is what follows the header and begins at byte `data_start` of the
// file.
absl::StatusOr<StoredTensor> ReadEntry(const JsonDocument& document,
                                       const std::string& name,
                                       const nlohmann::json& entry,
                                       std::string_view data,
                                       std::uint64_t data_start) {
  // Finding the place costs a search of the header, so only an error pays for it.
  const auto place = [&] {
    FilePlace found = document.Place(name);
    found.item = absl::StrCat("tensor '", Printable(name), "'");
    return found;
  };
  if (!entry.is_object()) {
    return DamagedFile(place(), "its entry is not an object");
  }
  for (const auto& [key, value] : entry.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      return DamagedFile(place(), absl::StrCat("unknown key '", Printable(key), "'"));
    }
  }
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) {
    return DamagedFile(place(), "no dtype");
  }
  const auto type = ElementTypeFromSafetensors(dtype->get<std::string>());
  if (!type.has_value()) {
    return UnsupportedFile(place(), absl::StrCat("dtype '", Printable(dtype->get<std::string>()),
                                                 "', only F32, F16 and BF16 can be read"));
  }
  auto shape = ReadIntegers(entry, "shape", std::nullopt);
  if (!shape.has_value() || shape->size() > kHighestRank) {
    return DamagedFile(place(),
                       absl::StrCat("its shape is not a list of at most ", kHighestRank, " sizes"));
  }
  const auto range = ReadIntegers(entry, "data_offsets", 2);
  if (!range.has_value()) {
    return DamagedFile(place(), "its data_offsets are not two byte offsets");
  }
  std::optional<std::uint64_t> size = FormatOf(*type).bytes;
  for (const std::uint64_t dimension : *shape) {
    size = size.has_value() ? CheckedMultiply(*size, dimension) : std::nullopt;
  }
  if (!size.has_value()) {
    return DamagedFile(place(), "the size of its shape overflows 64 bits");
  }
  const std::uint64_t begin = (*range)[0];
  const std::uint64_t end = (*range)[1];
  if (begin > end || end > data.size()) {
    return DamagedFile(place(),
                       absl::StrCat("bytes ", begin, " to ", end, " are not inside the data of ",
                                    data.size(), " bytes"));
  }
  if (end - begin != *size) {
    return DamagedFile(place(),
                       absl::StrCat(end - begin, " bytes of data, but its shape has ", *size));
  }
  return StoredTensor{.name = name,
                      .type = *type,
                      .dimensions = *std::move(shape),
                      .bytes = data.substr(begin, *size),
                      .offset = data_start + begin,
                      .path = document.path()};
}

absl::Status CheckTiling(const std::vector<StoredTensor>& tensors,
                         const FilePlace& data_place,
                         std::uint64_t file_size) {
  std::uint64_t expected = data_place.offset;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.offset != expected) {
      return DamagedFile(tensor.Place(), tensor.offset < expected
                                             ? "overlaps the tensor before it"
                                             : absl::StrCat("a gap of ", tensor.offset - expected,
                                                            " bytes before it"));
    }
    expected = tensor.offset + tensor.bytes.size();
  }
  if (expected != file_size) {
    return DamagedFile({data_place.path, data_place.item, expected},
                       absl::StrCat(file_size - expected, " bytes that belong to no tensor"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  std::unique_ptr<SafetensorsFile> opened(new SafetensorsFile(std::move(file)));
  RETURN_IF_ERROR(opened->Parse());
  return opened;
}

absl::Status SafetensorsFile::Parse() {
  const std::string& path = file_.path();
  ByteReader reader(file_.bytes());
  const auto length = reader.Get<std::uint64_t>();
  if (!length.has_value()) {
    return DamagedFile({path, "header", 0}, "the file ends within the header's length");
  }
  if (*length > kLongestHeader) {
    return DamagedFile(
        {path, "header", 0},
        absl::StrCat("a header of ", *length, " bytes, at most ", kLongestHeader, " are allowed"));
  }
  const auto header = reader.GetBytes(*length);
  if (!header.has_value()) {
    return DamagedFile({path, "header", 0},
                       absl::StrCat("a header of ", *length, " bytes, but only ",
                                    reader.remaining(), " are left in the file"));
  }
  if (header->empty() || header->front() != '{') {
    return DamagedFile({path, "header", kLengthBytes}, "does not begin with '{'");
  }
  ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::Parse(path, *header, kLengthBytes));
  const std::string_view data = file_.bytes().substr(reader.offset());
  for (const auto& [name, entry] : document.root().items()) {
    if (name == "__metadata__") {
      RETURN_IF_ERROR(CheckMetadata(entry, document.Place(name)));
      continue;
    }
    ASSIGN_OR_RETURN(StoredTensor tensor, ReadEntry(document, name, entry, data, reader.offset()));
    tensors_.push_back(std::move(tensor));
  }
  std::stable_sort(
      tensors_.begin(), tensors_.end(), [](const StoredTensor& a, const StoredTensor& b) {
        return std::pair(a.offset, a.bytes.size()) < std::pair(b.offset, b.bytes.size());
      });
  return CheckTiling(tensors_, {path, "data", reader.offset()}, file_.bytes().size());
}

}  // namespace baton
