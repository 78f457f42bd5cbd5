#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace baton {

// A place in a model file, as an error message names it.
struct FilePlace {
  std::string path;
  std::string item;          // "tensor 'output.weight'", "key 'llama.block_count'", "header"
  std::uint64_t offset = 0;  // bytes from the start of the file
};

// INVALID_ARGUMENT, "<path>: <item> at byte <offset>: <problem>": the file is damaged or breaks its
// format's rules.
absl::Status DamagedFile(const FilePlace& place, const std::string& problem);

// UNIMPLEMENTED, the same text: the file is sound and asks for something that Baton does not do.
absl::Status UnsupportedFile(const FilePlace& place, const std::string& problem);

// `status` with the place put before its message; OK stays OK.
absl::Status AtPlace(const FilePlace& place, const absl::Status& status);

// Text from a file, fit for a message: at most 80 bytes, anything but printable ASCII escaped.
std::string Printable(std::string_view text);

}  // namespace baton
