#include "model/json_reader.h"

#include <cstdint>
#include <limits>

#include "common/status_macros.h"

namespace baton {

const nlohmann::json* JsonReader::Find(const std::string& key) const {
  if (!object_.is_object()) {
    return nullptr;
  }
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<std::optional<int>> JsonReader::Count(const std::string& key) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  constexpr std::uint64_t kMost = std::numeric_limits<int>::max();
  if (!value->is_number_unsigned() || value->get<std::uint64_t>() > kMost) {
    return DamagedFile(Place(key), "not an integer in 0 to 2^31 - 1");
  }
  return value->get<int>();
}

absl::StatusOr<std::optional<double>> JsonReader::Number(const std::string& key) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_number()) {
    return DamagedFile(Place(key), "not a number");
  }
  return value->get<double>();
}

absl::StatusOr<std::optional<bool>> JsonReader::Bool(const std::string& key) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_boolean()) {
    return DamagedFile(Place(key), "not true or false");
  }
  return value->get<bool>();
}

absl::StatusOr<std::optional<std::string>> JsonReader::String(const std::string& key) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_string()) {
    return DamagedFile(Place(key), "not a string");
  }
  return value->get<std::string>();
}

absl::StatusOr<int> JsonReader::RequiredCount(const std::string& key) const {
  ASSIGN_OR_RETURN(const std::optional<int> value, Count(key));
  if (!value.has_value()) {
    return DamagedFile(Place(key), "the key is missing");
  }
  return *value;
}

}  // namespace baton
