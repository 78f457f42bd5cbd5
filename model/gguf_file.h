#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/file.h"
#include "model/file_error.h"
#include "model/stored_tensor.h"

namespace baton {

enum class GgufType : std::uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// A metadata value, checked against the end of the file but not yet decoded.
struct GgufValue {
  GgufType type = GgufType::kUint8;
  GgufType element_type = GgufType::kUint8;  // of an array
  std::uint64_t count = 1;                   // elements of an array
  std::string_view bytes;    // the value, or the array's elements; owned by the mapped file
  std::uint64_t offset = 0;  // of `bytes` in the file
};

// A GGUF file, version 2 or 3, little-endian: metadata and where the tensors lie.
//
//   header    "GGUF", u32 version, u64 tensor count, u64 key/value count
//   metadata  key (string), u32 type, value; a string is u64 length and bytes, an array u32 type,
//   u64 count, elements tensors   name (string), u32 rank, u64 dimensions (fastest first), u32
//   type, u64 offset from the start of the data padding   zeros up to a multiple of
//   `general.alignment` data
//
// Every length, count and offset is checked before use: keys and tensor names are unique, tensors
// lie inside the data, aligned, and none overlaps another. What keys and tensors mean is not this
// class's business.
//
// Immutable after construction.
class GgufFile {
 public:
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);

  bool Has(const std::string& key) const { return metadata_.contains(key); }
  const std::map<std::string, GgufValue>& metadata() const { return metadata_; }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  // Gives away the mapping, which keeps the bytes of all tensors valid.
  MappedFile TakeFile() && { return std::move(file_); }

  // Each reads one key. INVALID_ARGUMENT when it is absent, has another type, or does not fit. An
  // integer may be stored in any integer type; 0 to 2^31 - 1 is what fits.
  absl::StatusOr<int> ReadCount(const std::string& key) const;
  absl::StatusOr<double> ReadFloat(const std::string& key) const;
  absl::StatusOr<bool> ReadBool(const std::string& key) const;
  absl::StatusOr<std::string> ReadString(const std::string& key) const;
  absl::StatusOr<std::vector<std::string>> ReadStrings(const std::string& key) const;
  absl::StatusOr<std::vector<int>> ReadCounts(const std::string& key) const;

  // Where the key's value lies; the start of the file for an absent one.
  FilePlace Place(const std::string& key) const;

 private:
  friend class GgufParser;

  explicit GgufFile(MappedFile file) : file_(std::move(file)) {}

  absl::StatusOr<const GgufValue*> Find(const std::string& key) const;

  MappedFile file_;
  std::map<std::string, GgufValue> metadata_;
  std::vector<StoredTensor> tensors_;  // in the file's order
};

}  // namespace baton
