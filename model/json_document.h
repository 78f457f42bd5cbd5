#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "model/file_error.h"

namespace baton {

// JSON text from a file that is not trusted, and where its keys lie.
//
// Refused beside what JSON itself forbids: nesting deeper than 64, a key twice in one object,
// anything but an object at the top, text that is not UTF-8.
//
// Immutable after construction.
class JsonDocument {
 public:
  // `text` begins at byte `file_offset` of `path` and must outlive the document.
  static absl::StatusOr<JsonDocument> Parse(const std::string& path,
                                            std::string_view text,
                                            std::uint64_t file_offset = 0);

  const std::string& path() const { return path_; }
  const nlohmann::json& root() const { return root_; }

  // Where `key` first stands in the text; the start of the text when it does not.
  FilePlace Place(const std::string& key) const;

 private:
  JsonDocument(std::string path, std::string_view text, std::uint64_t file_offset)
      : path_(std::move(path)), text_(text), file_offset_(file_offset) {}

  std::string path_;
  std::string_view text_;  // owned by Parse's caller
  std::uint64_t file_offset_;
  nlohmann::json root_;
};

}  // namespace baton
