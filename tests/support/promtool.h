#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace baton {

// What `promtool check metrics` (Debian package prometheus) finds wrong with a scrape, a line each;
// without the complaints about names that are vLLM's: that they have a colon, and that its
// histogram of step sizes is called `_total`. NOT_FOUND without the program, INVALID_ARGUMENT for
// text that it cannot read.
inline absl::StatusOr<std::vector<std::string>> LintMetrics(const std::string& text) {
  const std::string path =
      (std::filesystem::temp_directory_path() / absl::StrCat("baton_lint_", getpid(), ".prom"))
          .string();
  std::ofstream(path) << text;
  FILE* const pipe = popen(absl::StrCat("promtool check metrics < ", path, " 2>&1").c_str(), "r");
  std::string output;
  char part[4096];
  for (std::size_t count = 0; (count = fread(part, 1, sizeof part, pipe)) > 0;) {
    output.append(part, count);
  }
  const int code = WEXITSTATUS(pclose(pipe));
  std::filesystem::remove(path);
  constexpr int kNoProgram = 127;
  constexpr int kLintErrors = 3;
  if (code == kNoProgram) {
    return absl::NotFoundError("promtool is not installed");
  }
  if (code != 0 && code != kLintErrors) {
    return absl::InvalidArgumentError(output);
  }
  std::vector<std::string> complaints;
  for (const auto line : absl::StrSplit(output, '\n', absl::SkipEmpty())) {
    const bool of_vllm =
        absl::StartsWith(line, "vllm:") &&
        (absl::EndsWith(line, "metric names should not contain ':'") ||
         line ==
             "vllm:iteration_tokens_total non-counter metrics should not have \"_total\" suffix");
    if (!of_vllm) {
      complaints.emplace_back(line);
    }
  }
  return complaints;
}

}  // namespace baton
