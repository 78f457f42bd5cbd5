#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace baton {

// The file name of the model that every example uses, inside `<cache>/models`.
inline constexpr char kExampleModelFile[] = "SmolLM2-135M-Instruct.Q4_1.gguf";

// What `--model` means. Empty: the example model in the cache. Otherwise a path that exists, or
// else a name in
// `<cache_folder>/models`, with or without ".gguf". NOT_FOUND says where it was looked for and how
// to get it.
absl::StatusOr<std::string> ResolveModelPath(const std::string& model,
                                             const std::string& cache_folder);

}  // namespace baton
