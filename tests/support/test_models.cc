#include "tests/support/test_models.h"

#include <cstdlib>

#include "common/check.h"
#include "common/status_macros.h"
#include "frontend/server_flags.h"
#include "model/model_path.h"
#include "tests/support/tiny_checkpoint.h"
#include "tools/tiny_model.h"

namespace baton {

const TestModel& TinyModel() {
  static const TemporaryFolder folder;
  static const TestModel model = [] {
    const std::string path = (folder.path() / "tiny.gguf").string();
    const TinyModelOptions options{.vocabulary = kTinyVocabulary, .context_tokens = kTinyContext};
    BATON_CHECK(WriteTinyGguf(options, path).ok());
    return TestModel{.path = path, .cache = folder.path().string()};
  }();
  return model;
}

absl::StatusOr<TestModel> ExampleModel() {
  const char* cache = std::getenv("BATON_CACHE");
  const std::string folder = cache != nullptr ? cache : DefaultCacheFolder(std::getenv("HOME"));
  ASSIGN_OR_RETURN(const std::string path, ResolveModelPath("", folder));
  return TestModel{.path = path, .cache = folder};
}

}  // namespace baton
