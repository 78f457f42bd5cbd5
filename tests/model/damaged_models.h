#pragma once

#include <string>
#include <vector>

namespace baton {

// A model on disk that breaks one rule, and what the error about it must say.
struct DamagedModel {
  std::string name;        // "gguf-truncated-in-a-key"
  std::string path;        // of the GGUF file or the Hugging Face directory
  std::string names_file;  // the path in the message: `path`, or the file inside it that is damaged
  std::string
      names_item;  // the tensor, key or part in the message; empty when a whole file is missing
};

// Write sound models and then damaged ones under `directory`; each model in a file or directory of
// its own. One list for each format; together more than a hundred.
std::vector<DamagedModel> WriteDamagedGgufs(const std::string& directory);
std::vector<DamagedModel> WriteDamagedHuggingFace(const std::string& directory);

}  // namespace baton
