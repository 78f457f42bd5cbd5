#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

// A model as programs and engines of a test open it.
struct TestModel {
  std::string path;
  std::string cache;  // folder for --cache

  std::vector<std::string> Flags() const { return {"--model", path, "--cache", cache}; }
};

// A random model of two layers, 8 KiB a block, context 16,384: thousands of tokens a second, so
// that a prompt of kLongPromptTokens still takes a worker a second or two. Written at the first
// call, removed when the program ends.
const TestModel& TinyModel();
inline constexpr int kTinyVocabulary = 512;
inline constexpr int kTinyContext = 16'384;
// Long enough to be caught in the middle of its prefill.
inline constexpr std::size_t kLongPromptTokens = 9'000;

// The model that every example uses, from the cache; NOT_FOUND when it has not been fetched.
absl::StatusOr<TestModel> ExampleModel();

}  // namespace baton
