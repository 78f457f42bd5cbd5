#include "model/gguf_file.h"

#include <bit>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/byte_io.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace baton {
namespace {

// The next integer, of whatever width and sign; nullopt for a type that is no integer or a value
// outside int.
std::optional<int> ReadInteger(GgufType type, ByteReader& reader) {
  std::optional<std::int64_t> value;
  switch (type) {
    case GgufType::kUint8:
      value = reader.Get<std::uint8_t>();
      break;
    case GgufType::kInt8:
      value = reader.Get<std::int8_t>();
      break;
    case GgufType::kUint16:
      value = reader.Get<std::uint16_t>();
      break;
    case GgufType::kInt16:
      value = reader.Get<std::int16_t>();
      break;
    case GgufType::kUint32:
      value = reader.Get<std::uint32_t>();
      break;
    case GgufType::kInt32:
      value = reader.Get<std::int32_t>();
      break;
    case GgufType::kUint64:
      // A value above 2^63 turns negative here and is refused below.
      if (const auto bits = reader.Get<std::uint64_t>(); bits.has_value()) {
        value = static_cast<std::int64_t>(*bits);
      }
      break;
    case GgufType::kInt64:
      value = reader.Get<std::int64_t>();
      break;
    case GgufType::kFloat32:
    case GgufType::kFloat64:
    case GgufType::kBool:
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  if (!value.has_value() || *value < 0 || *value > std::numeric_limits<int>::max()) {
    return std::nullopt;
  }
  return static_cast<int>(*value);
}

}  // namespace

FilePlace GgufFile::Place(const std::string& key) const {
  const auto found = metadata_.find(key);
  return {file_.path(), absl::StrCat("key '", Printable(key), "'"),
          found == metadata_.end() ? 0 : found->second.offset};
}

absl::StatusOr<const GgufValue*> GgufFile::Find(const std::string& key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) {
    return DamagedFile(Place(key), "the key is missing");
  }
  return &found->second;
}

absl::StatusOr<int> GgufFile::ReadCount(const std::string& key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->type == GgufType::kArray) {
    return UnsupportedFile(Place(key),
                           "an array where one number is read, as for layers that differ");
  }
  ByteReader reader(value->bytes);
  const auto count = ReadInteger(value->type, reader);
  if (!count.has_value()) {
    return DamagedFile(Place(key), "not an integer in 0 to 2^31 - 1");
  }
  return *count;
}

absl::StatusOr<double> GgufFile::ReadFloat(const std::string& key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  ByteReader reader(value->bytes);
  if (value->type == GgufType::kFloat32) {
    return std::bit_cast<float>(reader.Get<std::uint32_t>().value());
  }
  if (value->type == GgufType::kFloat64) {
    return std::bit_cast<double>(reader.Get<std::uint64_t>().value());
  }
  return DamagedFile(Place(key), "not a floating-point number");
}

absl::StatusOr<bool> GgufFile::ReadBool(const std::string& key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->type != GgufType::kBool) {
    return DamagedFile(Place(key), "not a boolean");
  }
  return value->bytes[0] != 0;
}

absl::StatusOr<std::string> GgufFile::ReadString(const std::string& key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->type != GgufType::kString) {
    return DamagedFile(Place(key), "not a string");
  }
  constexpr std::size_t kLengthBytes = 8;
  return std::string(value->bytes.substr(kLengthBytes));
}

absl::StatusOr<std::vector<std::string>> GgufFile::ReadStrings(const std::string& key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->type != GgufType::kArray || value->element_type != GgufType::kString) {
    return DamagedFile(Place(key), "not an array of strings");
  }
  std::vector<std::string> strings;
  strings.reserve(value->count);
  ByteReader reader(value->bytes);
  for (std::uint64_t i = 0; i < value->count; ++i) {
    const auto length = reader.Get<std::uint64_t>();
    BATON_CHECK(length.has_value());  // the parser has walked over these bytes
    strings.emplace_back(reader.GetBytes(*length).value());
  }
  return strings;
}

absl::StatusOr<std::vector<int>> GgufFile::ReadCounts(const std::string& key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->type != GgufType::kArray) {
    return DamagedFile(Place(key), "not an array of integers");
  }
  std::vector<int> counts;
  ByteReader reader(value->bytes);
  for (std::uint64_t i = 0; i < value->count; ++i) {
    const auto count = ReadInteger(value->element_type, reader);
    if (!count.has_value()) {
      return DamagedFile(Place(key),
                         absl::StrCat("element ", i, " is not an integer in 0 to 2^31 - 1"));
    }
    counts.push_back(*count);
  }
  return counts;
}

}  // namespace baton
