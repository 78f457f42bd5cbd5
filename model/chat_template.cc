#include "model/chat_template.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace baton {
namespace {

enum class StepKind {
  kStatement,   // what stands between {% and %}, without white space
  kExpression,  // a part of what {{ }} writes that is no string
  kText,        // characters written as they are
};

struct Step {
  StepKind kind = StepKind::kText;
  std::string text;

  friend bool operator==(const Step&, const Step&) = default;
};

bool IsBlank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

// Cuts a template into steps. Neighbouring texts become one, so that it does not matter how strings
// are joined.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  // nullopt for text that is not cut cleanly into tags and what lies between, or has a comment.
  std::optional<std::vector<Step>> Read() {
    while (done_ < text_.size()) {
      const std::size_t tag = FindTag();
      ReadPlain(tag);
      if (tag == text_.size()) {
        break;
      }
      if (!ReadTag()) {
        return std::nullopt;
      }
    }
    return steps_;
  }

 private:
  std::size_t FindTag() const {
    std::size_t tag = done_;
    while (tag < text_.size()) {
      const std::string_view rest = text_.substr(tag, 2);
      if (rest == "{%" || rest == "{{" || rest == "{#") {
        break;
      }
      ++tag;
    }
    return tag;
  }

  // Text between tags, with white space taken away where Jinja takes it: beside a '-', and as
  // `transformers` sets it up, a line break after a statement and blanks before one.
  void ReadPlain(std::size_t end) {
    std::string_view plain = text_.substr(done_, end - done_);
    done_ = end;
    if (after_dash_) {
      while (!plain.empty() && IsBlank(plain.front())) {
        plain.remove_prefix(1);
      }
    } else if (after_statement_ && plain.starts_with('\n')) {
      plain.remove_prefix(1);
    }
    const bool before_dash = text_.substr(end, 3).ends_with('-') && end + 3 <= text_.size();
    if (before_dash) {
      while (!plain.empty() && IsBlank(plain.back())) {
        plain.remove_suffix(1);
      }
    } else if (text_.substr(end, 2) == "{%") {
      const std::size_t line = plain.find_last_not_of(" \t");
      const bool whole_line = line == std::string_view::npos
                                  ? plain.size() == end || after_statement_
                                  : plain[line] == '\n';
      if (whole_line) {
        plain = plain.substr(0, line == std::string_view::npos ? 0 : line + 1);
      }
    }
    AddText(plain);
  }

  bool ReadTag() {
    const bool is_statement = text_.substr(done_, 2) == "{%";
    if (!is_statement && text_.substr(done_, 2) != "{{") {
      return false;
    }
    done_ += 2;
    if (text_.substr(done_).starts_with('-')) {
      ++done_;
    }
    const std::string_view close = is_statement ? "%}" : "}}";
    std::string code;  // what is read of the part before the next string or '+'
    while (true) {
      if (done_ >= text_.size()) {
        return false;
      }
      const char c = text_[done_];
      const std::string_view rest = text_.substr(done_);
      const bool dashed = c == '-' && rest.substr(1, 2) == close;
      if (dashed || rest.starts_with(close)) {
        done_ += dashed ? 3 : 2;
        after_dash_ = dashed;
        break;
      }
      if (c == '\'' || c == '"') {
        const auto literal = ReadString();
        if (!literal.has_value()) {
          return false;
        }
        // A string by itself is text; one inside an index or a comparison is part of the code.
        if (!is_statement && code.empty()) {
          AddText(*literal);
        } else {
          code += "'" + *literal + "'";
        }
        continue;
      }
      ++done_;
      if (!is_statement && c == '+') {
        AddExpression(code);
      } else if (!IsBlank(c)) {
        code.push_back(c);
      }
    }
    after_statement_ = is_statement;
    if (is_statement) {
      steps_.push_back({StepKind::kStatement, WithIndexes(code)});
    } else {
      AddExpression(code);
    }
    return true;
  }

  // A quoted string with its escapes undone; nullopt for an escape that is not known or a missing
  // end.
  std::optional<std::string> ReadString() {
    const char quote = text_[done_++];
    std::string literal;
    for (; done_ < text_.size(); ++done_) {
      const char c = text_[done_];
      if (c == quote) {
        ++done_;
        return literal;
      }
      if (c != '\\') {
        literal.push_back(c);
        continue;
      }
      if (++done_ == text_.size()) {
        return std::nullopt;
      }
      switch (text_[done_]) {
        case 'n':
          literal.push_back('\n');
          break;
        case '\\':
        case '\'':
        case '"':
          literal.push_back(text_[done_]);
          break;
        default:
          return std::nullopt;
      }
    }
    return std::nullopt;
  }

  // "message.role" is "message['role']".
  static std::string WithIndexes(std::string code) {
    for (const std::string name : {"role", "content"}) {
      const std::string dotted = "." + name;
      for (std::size_t at = code.find(dotted); at != std::string::npos;
           at = code.find(dotted, at)) {
        code.replace(at, dotted.size(), "['" + name + "']");
      }
    }
    return code;
  }

  void AddText(std::string_view text) {
    if (text.empty()) {
      return;
    }
    if (!steps_.empty() && steps_.back().kind == StepKind::kText) {
      steps_.back().text.append(text);
    } else {
      steps_.push_back({StepKind::kText, std::string(text)});
    }
  }

  void AddExpression(std::string& code) {
    if (!code.empty()) {
      steps_.push_back({StepKind::kExpression, WithIndexes(code)});
      code.clear();
    }
  }

  const std::string_view text_;  // owned by RecogniseChatMl's caller
  std::size_t done_ = 0;
  bool after_dash_ = false;       // the tag before ended with '-'
  bool after_statement_ = false;  // the tag before was a {% %}
  std::vector<Step> steps_;
};

Step Statement(const char* code) {
  return {StepKind::kStatement, code};
}
Step Expression(const char* code) {
  return {StepKind::kExpression, code};
}
Step Text(const char* text) {
  return {StepKind::kText, text};
}

// The text of the default system message when `step` writes one.
std::optional<std::string> DefaultSystem(const Step& step) {
  constexpr std::string_view kOpening = "<|im_start|>system\n";
  constexpr std::string_view kClosing = "<|im_end|>\n";
  const std::string& text = step.text;
  const bool fits = step.kind == StepKind::kText &&
                    text.size() >= kOpening.size() + kClosing.size() &&
                    text.starts_with(kOpening) && text.ends_with(kClosing);
  if (!fits) {
    return std::nullopt;
  }
  std::string content =
      text.substr(kOpening.size(), text.size() - kOpening.size() - kClosing.size());
  return content.find("<|im_") == std::string::npos ? std::optional(std::move(content))
                                                    : std::nullopt;
}

// Removes `expected` from the front of `steps` when it is there.
bool Take(std::vector<Step>& steps, const std::vector<Step>& expected) {
  if (steps.size() < expected.size() ||
      !std::equal(expected.begin(), expected.end(), steps.begin())) {
    return false;
  }
  steps.erase(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(expected.size()));
  return true;
}

}  // namespace

std::optional<ChatMlTemplate> RecogniseChatMl(std::string_view text) {
  auto steps = Reader(text).Read();
  if (!steps.has_value()) {
    return std::nullopt;
  }
  Take(*steps, {Statement("ifnotadd_generation_promptisdefined"),
                Statement("setadd_generation_prompt=false"), Statement("endif")});
  if (!Take(*steps, {Statement("formessageinmessages")})) {
    return std::nullopt;
  }
  ChatMlTemplate found;
  if (Take(*steps, {Statement("ifloop.firstandmessages[0]['role']!='system'")})) {
    found.default_system = steps->empty() ? std::nullopt : DefaultSystem(steps->front());
    if (!found.default_system.has_value()) {
      return std::nullopt;
    }
    steps->erase(steps->begin());
    if (!Take(*steps, {Statement("endif")})) {
      return std::nullopt;
    }
  }
  const bool rest = Take(*steps, {Text("<|im_start|>"), Expression("message['role']"), Text("\n"),
                                  Expression("message['content']"), Text("<|im_end|>\n"),
                                  Statement("endfor"), Statement("ifadd_generation_prompt"),
                                  Text("<|im_start|>assistant\n"), Statement("endif")});
  return rest && steps->empty() ? std::optional(std::move(found)) : std::nullopt;
}

}  // namespace baton
