#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace baton {

// A directory of its own that goes away with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "baton-model-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  std::string path() const { return path_.string(); }
  std::string operator/(std::string_view name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline std::string ReadFile(const std::string& path) {
  std::ifstream input(path, std::ios::binary);
  EXPECT_TRUE(input) << path;
  return {std::istreambuf_iterator<char>(input), {}};
}

inline void WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream output(path, std::ios::binary | std::ios::trunc);
  output.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  output.close();
  EXPECT_TRUE(output) << path;
}

// The cache folder of this user, as main() of every program finds it.
inline std::string CacheFolder() {
  if (const char* set = std::getenv("BATON_CACHE"); set != nullptr && *set != '\0') {
    return set;
  }
  const char* home = std::getenv("HOME");
  return std::string(home == nullptr ? "" : home) + "/.cache/baton";
}

}  // namespace baton
