#include "model/model_path.h"

#include <filesystem>

#include "absl/strings/str_cat.h"

namespace baton {

absl::StatusOr<std::string> ResolveModelPath(const std::string& model,
                                             const std::string& cache_folder) {
  const std::filesystem::path models = std::filesystem::path(cache_folder) / "models";
  std::error_code error;
  if (model.empty()) {
    const std::filesystem::path example = models / kExampleModelFile;
    if (!std::filesystem::exists(example, error)) {
      return absl::NotFoundError(absl::StrCat("no model given, and the example model is not at ",
                                              example.string(), ": ./quickstart.sh fetches it"));
    }
    return example.string();
  }
  if (std::filesystem::exists(model, error)) {
    return model;
  }
  // Only a plain name is looked up in the cache: a path that does not exist is a mistake to be told
  // of.
  if (model.find('/') == std::string::npos) {
    for (const std::string& name : {model, model + ".gguf"}) {
      if (std::filesystem::exists(models / name, error)) {
        return (models / name).string();
      }
    }
    return absl::NotFoundError(absl::StrCat(
        "model '", model, "': no such file or directory, and no such name in ", models.string()));
  }
  return absl::NotFoundError(absl::StrCat("model '", model, "': no such file or directory"));
}

}  // namespace baton
