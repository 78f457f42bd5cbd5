#include "model/file_error.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace baton {
namespace {

std::string Describe(const FilePlace& place, const std::string& problem) {
  return absl::StrCat(place.path, ": ", place.item, " at byte ", place.offset, ": ", problem);
}

}  // namespace

absl::Status DamagedFile(const FilePlace& place, const std::string& problem) {
  return absl::InvalidArgumentError(Describe(place, problem));
}

absl::Status UnsupportedFile(const FilePlace& place, const std::string& problem) {
  return absl::UnimplementedError(Describe(place, problem));
}

absl::Status AtPlace(const FilePlace& place, const absl::Status& status) {
  if (status.ok()) {
    return status;
  }
  return absl::Status(status.code(), Describe(place, std::string(status.message())));
}

std::string Printable(std::string_view text) {
  constexpr std::size_t kMostBytes = 80;
  std::string shown = absl::CHexEscape(std::string(text.substr(0, kMostBytes)));
  if (text.size() > kMostBytes) {
    shown.append("...");
  }
  return shown;
}

}  // namespace baton
