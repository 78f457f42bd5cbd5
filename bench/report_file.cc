#include "bench/report_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace baton {

absl::Status WriteReportFile(const std::string& path, const std::string& text) {
  const std::string unfinished = path + ".part";
  std::ofstream file(unfinished, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    return absl::InternalError(absl::StrCat("write ", path, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace baton
