#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/json_document.h"

namespace baton {

// Reads typed members of a document's root, or of `object` inside it. A member that is null counts
// as absent: that is how these files write "not set". An absent one is nullopt; one of another type
// is INVALID_ARGUMENT naming its key.
//
// Borrows the document, which must outlive it. Immutable after construction.
class JsonReader {
 public:
  explicit JsonReader(const JsonDocument& document) : JsonReader(document, document.root()) {}
  JsonReader(const JsonDocument& document, const nlohmann::json& object)
      : document_(document), object_(object) {}

  // Null when absent.
  const nlohmann::json* Find(const std::string& key) const;

  // 0 to 2^31 - 1.
  absl::StatusOr<std::optional<int>> Count(const std::string& key) const;
  absl::StatusOr<std::optional<double>> Number(const std::string& key) const;
  absl::StatusOr<std::optional<bool>> Bool(const std::string& key) const;
  absl::StatusOr<std::optional<std::string>> String(const std::string& key) const;

  // INVALID_ARGUMENT when the key is absent.
  absl::StatusOr<int> RequiredCount(const std::string& key) const;

  FilePlace Place(const std::string& key) const { return document_.Place(key); }

 private:
  const JsonDocument& document_;
  const nlohmann::json& object_;  // owned by the document
};

}  // namespace baton
