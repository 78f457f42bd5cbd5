// make-damaged-models DIRECTORY: writes every damaged model there and lists them on standard
// output, one a line: name, path, and what the error must name (file, item), separated by tabs. For
// tests that start whole programs on them.
#include <cstdio>
#include <filesystem>

#include "tests/model/damaged_models.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make-damaged-models DIRECTORY\n");
    return 2;
  }
  std::filesystem::create_directories(argv[1]);
  for (const auto& models :
       {baton::WriteDamagedGgufs(argv[1]), baton::WriteDamagedHuggingFace(argv[1])}) {
    for (const baton::DamagedModel& model : models) {
      std::printf("%s\t%s\t%s\t%s\n", model.name.c_str(), model.path.c_str(),
                  model.names_file.c_str(), model.names_item.c_str());
    }
  }
  return 0;
}
