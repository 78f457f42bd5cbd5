#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/strong_id.h"
#include "model/tokenizer.h"

namespace baton {

struct ChatMessage {
  std::string role;     // "system", "user", "assistant": letters, digits, '_' and '-'
  std::string content;  // UTF-8
};

// Writes a conversation as the model was trained to read it. Chosen from the model's own template
// by its text; a template is recognised exactly or not at all, never executed.
//
// Template text and message content are tokenized separately, and control tokens are recognised in
// template text alone: nothing a message says can end its turn. Adds no beginning-of-sequence token
// beside the template's own.
//
// Immutable after construction.
class ChatFormat {
 public:
  // From the template in the model's file; empty when it has none.
  static ChatFormat FromTemplate(const std::string& chat_template);

  // The whole conversation, ending with the opening of the assistant's turn. FAILED_PRECONDITION
  // when the model has no template or one that is not known; INVALID_ARGUMENT for an empty
  // conversation, a bad role, or content that is not UTF-8, naming `messages[i].role` or
  // `messages[i].content` and the byte offset.
  absl::StatusOr<std::vector<TokenId>> Format(const Tokenizer& tokenizer,
                                              std::span<const ChatMessage> messages) const;

  // False when Format refuses every conversation.
  bool supported() const { return problem_.empty(); }
  // What the model puts first when a conversation does not begin with a system message; nullopt:
  // nothing.
  const std::optional<std::string>& default_system() const { return default_system_; }

 private:
  std::string problem_;  // why chat is refused; empty for ChatML
  std::optional<std::string> default_system_;
};

}  // namespace baton
