#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace baton {

// A ChatML template: "<|im_start|>role\ncontent<|im_end|>\n" for each message, then the assistant's
// opening.
struct ChatMlTemplate {
  // What comes first when the first message is not the system's.
  std::optional<std::string> default_system;
};

// Reads the text of a Jinja template and compares it, statement by statement, with the ChatML ones.
// White space between tags, quotes and the cutting of strings may differ; any other difference, a
// further statement included, gives nullopt.
std::optional<ChatMlTemplate> RecogniseChatMl(std::string_view text);

}  // namespace baton
