#include <algorithm>
#include <limits>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/byte_io.h"
#include "common/checked_math.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "model/gguf_file.h"

namespace baton {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kLongestKey = 65535;
constexpr std::uint64_t kLongestTensorName = 64;
constexpr std::uint32_t kHighestRank = 4;
constexpr int kDeepestArray = 4;

// Bytes of one value of a fixed-size type; nullopt for strings, arrays and unknown types.
std::optional<std::uint64_t> FixedSize(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

// Reads the parts of a GGUF file in order. Used once, by GgufFile::Open.
class GgufParser {
 public:
  explicit GgufParser(GgufFile& file) : file_(file), bytes_(file.file_.bytes()), reader_(bytes_) {}

  absl::Status Parse() {
    RETURN_IF_ERROR(ParseHeader());
    for (std::uint64_t i = 0; i < key_count_; ++i) {
      RETURN_IF_ERROR(ParseKey(i));
    }
    RETURN_IF_ERROR(ReadAlignment());
    for (std::uint64_t i = 0; i < tensor_count_; ++i) {
      RETURN_IF_ERROR(ParseTensor(i));
    }
    RETURN_IF_ERROR(FindData());
    for (StoredTensor& tensor : file_.tensors_) {
      RETURN_IF_ERROR(LocateTensor(tensor));
    }
    return CheckOverlap();
  }

 private:
  FilePlace Here(const std::string& item) const {
    return {file_.file_.path(), item, reader_.offset()};
  }

  absl::Status Truncated(const std::string& item) const {
    return DamagedFile(
        Here(item), absl::StrCat("the file ends here, ", reader_.remaining(), " bytes are left"));
  }

  // A string of at most `longest` bytes.
  absl::StatusOr<std::string_view> ReadString(const std::string& item, std::uint64_t longest) {
    const FilePlace place = Here(item);
    const auto length = reader_.Get<std::uint64_t>();
    if (!length.has_value()) {
      return Truncated(item);
    }
    if (*length > longest) {
      return DamagedFile(place, absl::StrCat("a string of ", *length, " bytes, at most ", longest,
                                             " are allowed"));
    }
    const auto text = reader_.GetBytes(*length);
    if (!text.has_value()) {
      return DamagedFile(place, absl::StrCat("a string of ", *length, " bytes, but only ",
                                             reader_.remaining(), " are left in the file"));
    }
    return *text;
  }

  absl::Status ParseHeader() {
    const auto magic = reader_.GetBytes(kMagic.size());
    if (!magic.has_value()) {
      return Truncated("header");
    }
    if (*magic != kMagic) {
      return DamagedFile({file_.file_.path(), "header", 0},
                         absl::StrCat("not a GGUF file, it begins with '", Printable(*magic), "'"));
    }
    const FilePlace version_place = Here("version");
    const auto version = reader_.Get<std::uint32_t>();
    const auto tensors = reader_.Get<std::uint64_t>();
    const auto keys = reader_.Get<std::uint64_t>();
    if (!version.has_value() || !tensors.has_value() || !keys.has_value()) {
      return Truncated("header");
    }
    if (*version == 0x02000000U || *version == 0x03000000U) {
      return UnsupportedFile(version_place, "a big-endian file");
    }
    if (*version != 2 && *version != 3) {
      return UnsupportedFile(version_place,
                             absl::StrCat("GGUF version ", *version, ", only 2 and 3 can be read"));
    }
    tensor_count_ = *tensors;
    key_count_ = *keys;
    return absl::OkStatus();
  }

  absl::Status ParseKey(std::uint64_t index) {
    const std::string item = absl::StrCat("key ", index, " of ", key_count_);
    const FilePlace place = Here(item);
    ASSIGN_OR_RETURN(const std::string_view key, ReadString(item, kLongestKey));
    if (key.empty() || FindInvalidUtf8(key).has_value()) {
      return DamagedFile(place, absl::StrCat("'", Printable(key), "' is no name for a key"));
    }
    const std::string named = absl::StrCat("key '", Printable(key), "'");
    ASSIGN_OR_RETURN(const GgufType type, ReadType(named));
    GgufValue value{.type = type};
    if (type == GgufType::kArray) {
      RETURN_IF_ERROR(OpenArray(named, value.element_type, value.count));
    }
    value.offset = reader_.offset();
    if (type == GgufType::kArray) {
      RETURN_IF_ERROR(SkipElements(named, value.element_type, value.count, 1));
    } else {
      RETURN_IF_ERROR(SkipElements(named, type, 1, 0));
    }
    value.bytes = bytes_.substr(value.offset, reader_.offset() - value.offset);
    if (!file_.metadata_.emplace(std::string(key), value).second) {
      return DamagedFile({place.path, named, place.offset}, "the key appears twice");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<GgufType> ReadType(const std::string& item) {
    const FilePlace place = Here(item);
    const auto number = reader_.Get<std::uint32_t>();
    if (!number.has_value()) {
      return Truncated(item);
    }
    if (*number > static_cast<std::uint32_t>(GgufType::kFloat64)) {
      return DamagedFile(place, absl::StrCat("unknown value type ", *number));
    }
    return static_cast<GgufType>(*number);
  }

  absl::Status OpenArray(const std::string& item, GgufType& type, std::uint64_t& count) {
    ASSIGN_OR_RETURN(type, ReadType(item));
    const auto read = reader_.Get<std::uint64_t>();
    if (!read.has_value()) {
      return Truncated(item);
    }
    count = *read;
    return absl::OkStatus();
  }

  // Walks over `count` values; `depth` is how many arrays they are inside.
  absl::Status SkipElements(const std::string& item,
                            GgufType type,
                            std::uint64_t count,
                            int depth) {
    if (const auto size = FixedSize(type); size.has_value()) {
      return SkipFixed(item, type, count, *size);
    }
    // Each string takes at least 8 bytes and each array 12, so a false count ends at the end of the
    // file.
    for (std::uint64_t i = 0; i < count; ++i) {
      if (type == GgufType::kString) {
        RETURN_IF_ERROR(ReadString(item, std::numeric_limits<std::uint64_t>::max()).status());
        continue;
      }
      if (depth == kDeepestArray) {
        return DamagedFile(Here(item), absl::StrCat("arrays nested deeper than ", kDeepestArray));
      }
      GgufType inner_type = GgufType::kUint8;
      std::uint64_t inner_count = 0;
      RETURN_IF_ERROR(OpenArray(item, inner_type, inner_count));
      RETURN_IF_ERROR(SkipElements(item, inner_type, inner_count, depth + 1));
    }
    return absl::OkStatus();
  }

  absl::Status SkipFixed(const std::string& item,
                         GgufType type,
                         std::uint64_t count,
                         std::uint64_t size) {
    const FilePlace place = Here(item);
    const auto total = CheckedMultiply(count, size);
    const auto values = total.has_value() ? reader_.GetBytes(*total) : std::nullopt;
    if (!values.has_value()) {
      return DamagedFile(place, absl::StrCat(count, " values of ", size, " bytes, but only ",
                                             reader_.remaining(), " bytes are left in the file"));
    }
    if (type == GgufType::kBool) {
      const auto bad = std::find_if(values->begin(), values->end(),
                                    [](char byte) { return byte != 0 && byte != 1; });
      if (bad != values->end()) {
        return DamagedFile(place, absl::StrCat("a boolean of value ",
                                               static_cast<int>(static_cast<unsigned char>(*bad))));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadAlignment() {
    static constexpr char kKey[] = "general.alignment";
    if (!file_.Has(kKey)) {
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const int alignment, file_.ReadCount(kKey));
    if (alignment == 0 || alignment % 8 != 0) {
      return DamagedFile(file_.Place(kKey),
                         absl::StrCat("an alignment of ", alignment, ", not a multiple of 8"));
    }
    alignment_ = static_cast<std::uint64_t>(alignment);
    return absl::OkStatus();
  }

  // One tensor's entry; `offset` is left relative to the data, whose start is not known yet.
  absl::Status ParseTensor(std::uint64_t index) {
    const std::string item = absl::StrCat("tensor ", index, " of ", tensor_count_);
    const FilePlace place = Here(item);
    ASSIGN_OR_RETURN(const std::string_view name, ReadString(item, kLongestTensorName));
    if (name.empty() || FindInvalidUtf8(name).has_value()) {
      return DamagedFile(place, absl::StrCat("'", Printable(name), "' is no name for a tensor"));
    }
    StoredTensor tensor{.name = std::string(name), .path = place.path};
    const std::string named = absl::StrCat("tensor '", Printable(name), "'");
    if (!names_.insert(tensor.name).second) {
      return DamagedFile({place.path, named, place.offset}, "the tensor appears twice");
    }
    RETURN_IF_ERROR(ParseDimensions(named, tensor));
    const FilePlace type_place = Here(named);
    const auto type = reader_.Get<std::uint32_t>();
    const FilePlace offset_place = Here(named);
    const auto offset = reader_.Get<std::uint64_t>();
    if (!type.has_value() || !offset.has_value()) {
      return Truncated(named);
    }
    const auto known = ElementTypeFromGguf(*type);
    if (!known.has_value()) {
      return UnsupportedFile(type_place, absl::StrCat("element type ", *type, " is not known"));
    }
    if (*offset % alignment_ != 0) {
      return DamagedFile(offset_place,
                         absl::StrCat("offset ", *offset, " is not a multiple of ", alignment_));
    }
    tensor.type = *known;
    tensor.offset = *offset;
    file_.tensors_.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  absl::Status ParseDimensions(const std::string& item, StoredTensor& tensor) {
    const FilePlace place = Here(item);
    const auto rank = reader_.Get<std::uint32_t>();
    if (!rank.has_value()) {
      return Truncated(item);
    }
    if (*rank < 1 || *rank > kHighestRank) {
      return DamagedFile(place, absl::StrCat("a rank of ", *rank, ", not in 1 to ", kHighestRank));
    }
    for (std::uint32_t i = 0; i < *rank; ++i) {
      const FilePlace dimension_place = Here(item);
      const auto dimension = reader_.Get<std::uint64_t>();
      if (!dimension.has_value()) {
        return Truncated(item);
      }
      if (*dimension == 0) {
        return DamagedFile(dimension_place, absl::StrCat("dimension ", i, " is 0"));
      }
      tensor.dimensions.insert(tensor.dimensions.begin(), *dimension);
    }
    return absl::OkStatus();
  }

  absl::Status FindData() {
    const std::uint64_t end = reader_.offset();
    const std::uint64_t padding = (alignment_ - end % alignment_) % alignment_;
    if (tensor_count_ == 0) {
      return DamagedFile(Here("header"), "the file has no tensors");
    }
    if (padding > reader_.remaining()) {
      return Truncated("padding before the data");
    }
    data_start_ = end + padding;
    return absl::OkStatus();
  }

  absl::Status LocateTensor(StoredTensor& tensor) {
    const BlockFormat format = FormatOf(tensor.type);
    const std::uint64_t in_data = tensor.offset;
    const auto start = CheckedAdd(data_start_, in_data);
    FilePlace place = tensor.Place();
    place.offset = start.value_or(in_data);
    std::optional<std::uint64_t> values = 1;
    for (const std::uint64_t dimension : tensor.dimensions) {
      values = values.has_value() ? CheckedMultiply(*values, dimension) : std::nullopt;
    }
    if (values.has_value() && tensor.dimensions.back() % format.values != 0) {
      return DamagedFile(place, absl::StrCat("rows of ", tensor.dimensions.back(),
                                             " values, not a multiple of the ", format.values,
                                             " in a block of ", std::string(NameOf(tensor.type))));
    }
    const auto size =
        values.has_value() ? CheckedMultiply(*values / format.values, format.bytes) : std::nullopt;
    if (!size.has_value()) {
      return DamagedFile(place, "the size of its shape overflows 64 bits");
    }
    const auto end = start.has_value() ? CheckedAdd(*start, *size) : std::nullopt;
    if (!end.has_value() || *end > bytes_.size()) {
      return DamagedFile(
          place,
          absl::StrCat(*size, " bytes at offset ", in_data,
                       " of the data reach beyond the end of the file at byte ", bytes_.size()));
    }
    tensor.offset = *start;
    tensor.bytes = bytes_.substr(*start, *size);
    return absl::OkStatus();
  }

  absl::Status CheckOverlap() const {
    std::vector<const StoredTensor*> sorted;
    sorted.reserve(file_.tensors_.size());
    for (const StoredTensor& tensor : file_.tensors_) {
      sorted.push_back(&tensor);
    }
    std::sort(sorted.begin(), sorted.end(),
              [](const StoredTensor* a, const StoredTensor* b) { return a->offset < b->offset; });
    for (std::size_t i = 1; i < sorted.size(); ++i) {
      const StoredTensor& before = *sorted[i - 1];
      if (before.offset + before.bytes.size() > sorted[i]->offset) {
        return DamagedFile(sorted[i]->Place(),
                           absl::StrCat("overlaps tensor '", Printable(before.name), "'"));
      }
    }
    return absl::OkStatus();
  }

  GgufFile& file_;
  const std::string_view bytes_;  // the whole file
  ByteReader reader_;
  std::uint64_t tensor_count_ = 0;
  std::uint64_t key_count_ = 0;
  std::uint64_t alignment_ = kDefaultAlignment;
  std::uint64_t data_start_ = 0;
  absl::flat_hash_set<std::string> names_;
};

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  std::unique_ptr<GgufFile> gguf(new GgufFile(std::move(file)));
  RETURN_IF_ERROR(GgufParser(*gguf).Parse());
  return gguf;
}

}  // namespace baton
