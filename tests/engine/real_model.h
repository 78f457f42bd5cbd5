#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string_view>
#include <vector>

#include "common/check.h"
#include "model/checkpoint.h"
#include "tests/support/test_models.h"

namespace baton {

// The example model, opened once for a test program.
inline const Checkpoint& RealModel() {
  static const std::unique_ptr<Checkpoint> checkpoint = [] {
    const auto model = ExampleModel();
    BATON_CHECK(model.ok());
    auto opened = Checkpoint::Open(model->path, model->cache);
    BATON_CHECK(opened.ok());
    return *std::move(opened);
  }();
  return *checkpoint;
}

// Its token ids of `text`, in which control tokens are plain text.
inline std::vector<TokenId> RealTokens(std::string_view text) {
  auto ids = RealModel().tokenizer().Encode(text, /*special=*/false);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return *std::move(ids);
}

}  // namespace baton
