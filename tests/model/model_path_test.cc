#include "model/model_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/test_files.h"

namespace baton {
namespace {

using testing::HasSubstr;

TEST(ModelPath, EmptyIsTheExampleModel) {
  const TemporaryDirectory cache;
  const auto absent = ResolveModelPath("", cache.path());
  EXPECT_EQ(absent.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(absent.status().message()), HasSubstr(cache / "models"));

  std::filesystem::create_directory(cache / "models");
  const std::string example = cache / (std::string("models/") + kExampleModelFile);
  WriteFile(example, "x");
  EXPECT_EQ(ResolveModelPath("", cache.path()).value(), example);
}

TEST(ModelPath, PathComesBeforeName) {
  const TemporaryDirectory cache;
  WriteFile(cache / "here.gguf", "x");
  EXPECT_EQ(ResolveModelPath(cache / "here.gguf", "/nowhere").value(), cache / "here.gguf");
  EXPECT_EQ(ResolveModelPath(cache.path(), "/nowhere").value(), cache.path());
}

TEST(ModelPath, NameIsLookedUpInTheCache) {
  const TemporaryDirectory cache;
  std::filesystem::create_directories(cache / "models/folder-model");
  WriteFile(cache / "models/file-model.gguf", "x");
  EXPECT_EQ(ResolveModelPath("folder-model", cache.path()).value(), cache / "models/folder-model");
  EXPECT_EQ(ResolveModelPath("file-model", cache.path()).value(), cache / "models/file-model.gguf");
  EXPECT_EQ(ResolveModelPath("file-model.gguf", cache.path()).value(),
            cache / "models/file-model.gguf");
}

TEST(ModelPath, WhatIsNowhereSaysWhereItWasLookedFor) {
  const TemporaryDirectory cache;
  const auto name = ResolveModelPath("absent", cache.path());
  EXPECT_EQ(name.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(name.status().message()), HasSubstr("'absent'"));
  EXPECT_THAT(std::string(name.status().message()), HasSubstr(cache / "models"));
  EXPECT_EQ(ResolveModelPath("../absent", cache.path()).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace baton
