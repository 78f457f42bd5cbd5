#pragma once

#include "model/tokenizer_data.h"

namespace baton {

inline constexpr int kSmallestTinyVocabulary = 259;  // three control tokens and the bytes
inline constexpr int kLargestTinyVocabulary = 1024;

// The chat template of tiny models: ChatML with a default system message.
extern const char kTinyChatTemplate[];

// The tokenizer that tiny_model.h describes. REQUIRES: `vocabulary` is within the two bounds.
TokenizerData MakeTinyTokenizer(int vocabulary);

}  // namespace baton
