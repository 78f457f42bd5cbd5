#include "model/chat.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/chat_template.h"
#include "model/file_error.h"

namespace baton {
namespace {

constexpr char kTurnStart[] = "<|im_start|>";
constexpr char kTurnEnd[] = "<|im_end|>";
constexpr std::size_t kLongestRole = 64;

// A role goes into template text, where control tokens are recognised: so none can be spelled with
// these characters.
bool IsRole(const std::string& role) {
  constexpr char kAllowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  return !role.empty() && role.size() <= kLongestRole &&
         role.find_first_not_of(kAllowed) == std::string::npos;
}

// Collects template text until content interrupts it: neighbouring template text is tokenized as
// one.
class ChatMlWriter {
 public:
  explicit ChatMlWriter(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  absl::Status AddMessage(const std::string& role, const std::string& content) {
    Open(role);
    RETURN_IF_ERROR(FlushTemplateText());
    RETURN_IF_ERROR(Encode(content, /*special=*/false));
    absl::StrAppend(&template_text_, kTurnEnd, "\n");
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<TokenId>> Finish() && {
    Open("assistant");
    RETURN_IF_ERROR(FlushTemplateText());
    return std::move(ids_);
  }

 private:
  void Open(const std::string& role) { absl::StrAppend(&template_text_, kTurnStart, role, "\n"); }

  absl::Status FlushTemplateText() {
    RETURN_IF_ERROR(Encode(template_text_, /*special=*/true));
    template_text_.clear();
    return absl::OkStatus();
  }

  absl::Status Encode(const std::string& text, bool special) {
    ASSIGN_OR_RETURN(const std::vector<TokenId> ids, tokenizer_.Encode(text, special));
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    return absl::OkStatus();
  }

  const Tokenizer& tokenizer_;
  std::string template_text_;
  std::vector<TokenId> ids_;
};

}  // namespace

ChatFormat ChatFormat::FromTemplate(const std::string& chat_template) {
  ChatFormat format;
  if (chat_template.empty()) {
    format.problem_ = "this model has no chat template: only completions can be asked of it";
    return format;
  }
  auto chat_ml = RecogniseChatMl(chat_template);
  if (!chat_ml.has_value()) {
    format.problem_ = absl::StrCat(
        "this model's chat template is not one that is known (ChatML), it begins with '",
        Printable(chat_template), "': only completions can be asked of it");
    return format;
  }
  format.default_system_ = std::move(chat_ml->default_system);
  return format;
}

absl::StatusOr<std::vector<TokenId>> ChatFormat::Format(
    const Tokenizer& tokenizer, std::span<const ChatMessage> messages) const {
  if (!problem_.empty()) {
    return absl::FailedPreconditionError(problem_);
  }
  for (const char* token : {kTurnStart, kTurnEnd}) {
    if (!tokenizer.FindControl(token).has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat("this model's chat template needs the control token ", token,
                       ", which its tokenizer does not have"));
    }
  }
  if (messages.empty()) {
    return absl::InvalidArgumentError("messages: there are none");
  }
  ChatMlWriter writer(tokenizer);
  if (default_system_.has_value() && messages.front().role != "system") {
    RETURN_IF_ERROR(writer.AddMessage("system", *default_system_));
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (!IsRole(messages[i].role)) {
      return absl::InvalidArgumentError(absl::StrCat("messages[", i, "].role: '",
                                                     Printable(messages[i].role), "' is not 1 to ",
                                                     kLongestRole, " letters, digits, '_' or '-'"));
    }
    const absl::Status added = writer.AddMessage(messages[i].role, messages[i].content);
    if (!added.ok()) {
      return absl::Status(added.code(),
                          absl::StrCat("messages[", i, "].content: ", added.message()));
    }
  }
  return std::move(writer).Finish();
}

}  // namespace baton
