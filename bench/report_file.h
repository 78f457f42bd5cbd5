#pragma once

#include <string>

#include "absl/status/status.h"

namespace baton {

// Replaces the file as a whole: a reader never sees half of it. Errors name the path.
absl::Status WriteReportFile(const std::string& path, const std::string& text);

}  // namespace baton
