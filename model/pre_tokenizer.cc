#include "model/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace baton {
namespace {

// Unicode White_Space, written out: PCRE2's \s also holds U+180E, which is none since Unicode 6.3.
constexpr char kSpace[] =
    R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// Numbers that Unicode 15 to 17 added. PCRE2 10.42 knows Unicode 14, the Hugging Face library,
// whose pieces count, knows these too.
constexpr char kLaterNumbers[] =
    R"(\x{10d40}-\x{10d49}\x{116d0}-\x{116e3}\x{11bf0}-\x{11bf9}\x{11de0}-\x{11de9}\x{11f50}-\x{11f59})"
    R"(\x{16130}-\x{16139}\x{16d70}-\x{16d79}\x{16ff4}-\x{16ff6}\x{1ccf0}-\x{1ccf9}\x{1d2c0}-\x{1d2d3})"
    R"(\x{1e4f0}-\x{1e4f9}\x{1e5f1}-\x{1e5fa})";

// Every alternative begins at the end of the piece before it, and together they take any character:
// there is always a match, of at least one character.
std::string PatternText(PreTokenizerKind kind) {
  const std::string space = kSpace;
  const std::string words = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+)";
  switch (kind) {
    case PreTokenizerKind::kGpt2:
      return words + R"(| ?\p{N}+| ?[^\p{L}\p{N})" + space + "]+|[" + space + "]+(?![^" + space +
             "])|[" + space + "]+";
    case PreTokenizerKind::kGpt2SplitDigits: {
      // The numbers are cut out first and the rest is matched as if each part were a text of its
      // own: so white space before a number ends a text, and leaves no last space to the number.
      const std::string numbers = std::string(R"(\p{N})") + kLaterNumbers;
      return "[" + numbers + "]|" + words + R"(| ?[^\p{L})" + numbers + space + "]+|[" + space +
             "]+(?![^" + space + numbers + "])|[" + space + "]+";
    }
  }
  CheckFailed(__FILE__, __LINE__, "a PreTokenizerKind that is not in the enumeration");
}

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

struct PreTokenizer::Pattern {
  std::unique_ptr<pcre2_code, FreeCode> code;
};

PreTokenizer::PreTokenizer(PreTokenizerKind kind) {
  const std::string text = PatternText(kind);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto pattern = std::make_unique<Pattern>();
  pattern->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                    PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset,
                                    nullptr));
  BATON_CHECK(pattern->code != nullptr);
  // Where no executable memory may be had this fails, and matching interprets the pattern: slower,
  // the same result.
  pcre2_jit_compile(pattern->code.get(), PCRE2_JIT_COMPLETE);
  pattern_ = std::move(pattern);
}

PreTokenizer::~PreTokenizer() = default;

absl::StatusOr<std::vector<std::string_view>> PreTokenizer::Split(std::string_view text) const {
  const std::unique_ptr<pcre2_match_data, FreeMatchData> match(pcre2_match_data_create(1, nullptr));
  if (match == nullptr) {
    return absl::ResourceExhaustedError("no memory to match the pre-tokenizer's pattern");
  }
  std::vector<std::string_view> pieces;
  for (std::size_t start = 0; start < text.size();) {
    const int result = pcre2_match(pattern_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                   text.size(), start, PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    if (result < 0 && result != PCRE2_ERROR_NOMATCH) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "matching the pre-tokenizer's pattern at byte ", start, ": PCRE2 error ", result));
    }
    BATON_CHECK(result > 0);
    const std::size_t end = pcre2_get_ovector_pointer(match.get())[1];
    BATON_CHECK(end > start);
    pieces.push_back(text.substr(start, end - start));
    start = end;
  }
  return pieces;
}

}  // namespace baton
