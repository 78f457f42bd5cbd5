#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "common/check.h"
#include "common/random_id.h"
#include "model/checkpoint.h"
#include "tools/tiny_model.h"

namespace baton {

// A folder of its own for one test, removed with it.
class TemporaryFolder {
 public:
  TemporaryFolder()
      : path_(std::filesystem::temp_directory_path() / ("baton-" + HandoffId::Make().ToString())) {
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// A tiny random model on disk and opened.
class TinyCheckpoint {
 public:
  explicit TinyCheckpoint(const TinyModelOptions& options = {})
      : file_((folder_.path() / "tiny.gguf").string()) {
    BATON_CHECK(WriteTinyGguf(options, file_).ok());
    auto opened = Checkpoint::Open(file_);
    BATON_CHECK(opened.ok());
    checkpoint_ = *std::move(opened);
  }

  const Checkpoint& operator*() const { return *checkpoint_; }
  const Checkpoint* operator->() const { return checkpoint_.get(); }
  const std::string& file() const { return file_; }

 private:
  TemporaryFolder folder_;
  std::string file_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

}  // namespace baton
