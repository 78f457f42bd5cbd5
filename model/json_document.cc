#include "model/json_document.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace baton {
namespace {

constexpr int kDeepestNesting = 64;

// Offset of the first bracket that is nested too deeply. Runs before the parser, whose memory grows
// with the depth.
std::optional<std::size_t> FindTooDeep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kDeepestNesting) {
        return i;
      }
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return std::nullopt;
}

// Watches the parser's events for a key that an object already has.
class DuplicateFinder {
 public:
  using Event = nlohmann::json::parse_event_t;

  void Observe(Event event, const nlohmann::json& parsed) {
    if (event == Event::object_start) {
      keys_.emplace_back();
    } else if (event == Event::object_end) {
      keys_.pop_back();
    } else if (event == Event::key) {
      auto key = parsed.get<std::string>();
      if (!duplicate_.has_value() && !keys_.back().insert(key).second) {
        duplicate_ = std::move(key);
      }
    }
  }

  const std::optional<std::string>& duplicate() const { return duplicate_; }

 private:
  std::vector<absl::flat_hash_set<std::string>> keys_;  // of the objects that are open
  std::optional<std::string> duplicate_;
};

}  // namespace

absl::StatusOr<JsonDocument> JsonDocument::Parse(const std::string& path,
                                                 std::string_view text,
                                                 std::uint64_t file_offset) {
  JsonDocument document(path, text, file_offset);
  if (const auto offset = FindTooDeep(text); offset.has_value()) {
    return DamagedFile({path, "JSON", file_offset + *offset},
                       absl::StrCat("nested deeper than ", kDeepestNesting));
  }
  DuplicateFinder duplicates;
  try {
    document.root_ = nlohmann::json::parse(
        text.begin(), text.end(),
        [&](int /*depth*/, DuplicateFinder::Event event, nlohmann::json& parsed) {
          duplicates.Observe(event, parsed);
          return true;
        });
  } catch (const nlohmann::json::parse_error& error) {
    return DamagedFile({path, "JSON", file_offset + (error.byte > 0 ? error.byte - 1 : 0)},
                       Printable(error.what()));
  } catch (const nlohmann::json::exception& error) {
    return DamagedFile({path, "JSON", file_offset}, Printable(error.what()));
  }
  if (duplicates.duplicate().has_value()) {
    return DamagedFile(document.Place(*duplicates.duplicate()), "the key appears twice");
  }
  if (!document.root_.is_object()) {
    return DamagedFile({path, "JSON", file_offset}, "not an object");
  }
  return document;
}

FilePlace JsonDocument::Place(const std::string& key) const {
  const std::size_t found = text_.find("\"" + key + "\"");
  return {path_, absl::StrCat("key '", Printable(key), "'"),
          file_offset_ + (found == std::string_view::npos ? 0 : found)};
}

}  // namespace baton
