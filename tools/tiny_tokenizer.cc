#include "tools/tiny_tokenizer.h"

#include <string>

#include "common/check.h"
#include "model/byte_alphabet.h"

namespace baton {
namespace {

// How often letters are used, most first: the first merges are of pairs that texts really have.
constexpr char kLetters[] = "etaoinshrdlucmfwypvbgkjqxz";
constexpr int kCommonLetters = 12;

// Merges in the order of their rank: spaces, a space and a letter, pairs of letters with the common
// ones first, and words of two pairs. More of them than the largest vocabulary takes.
std::vector<std::pair<std::string, std::string>> ListMerges() {
  const std::string letters = kLetters;
  const std::string space = AlphabetCharacter(' ');
  std::vector<std::pair<std::string, std::string>> merges = {
      {space, space},
      {space + space, space + space},
      {AlphabetCharacter('\n'), AlphabetCharacter('\n')}};
  for (const char letter : letters) {
    merges.emplace_back(space, std::string(1, letter));
  }
  const std::string common = letters.substr(0, kCommonLetters);
  const auto add_pairs = [&](const std::string& firsts, const std::string& seconds) {
    for (const char first : firsts) {
      for (const char second : seconds) {
        merges.emplace_back(std::string(1, first), std::string(1, second));
      }
    }
  };
  add_pairs(common, common);
  for (const char* word : {"th er", "in te", "an de", "on le", "re st"}) {
    const std::string pairs = word;
    merges.emplace_back(pairs.substr(0, 2), pairs.substr(3));
  }
  add_pairs(common, letters.substr(kCommonLetters));
  add_pairs(letters.substr(kCommonLetters), letters);
  for (const char first : letters) {
    merges.emplace_back(space + std::string(1, first), "th");
    merges.emplace_back(space + std::string(1, first), "in");
    merges.emplace_back(space + std::string(1, first), "er");
  }
  return merges;
}

}  // namespace

const char kTinyChatTemplate[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a tiny model with random weights.<|im_end|>\\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% "
    "endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

TokenizerData MakeTinyTokenizer(int vocabulary) {
  BATON_CHECK(vocabulary >= kSmallestTinyVocabulary && vocabulary <= kLargestTinyVocabulary);
  TokenizerData data;
  data.pre_tokenizer = PreTokenizerKind::kGpt2SplitDigits;
  data.bos = TokenId(1);
  data.eos = TokenId(2);
  for (const char* control : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    data.tokens.push_back({.text = control, .kind = TokenKind::kControl});
  }
  for (int byte = 0; byte < 256; ++byte) {
    data.tokens.push_back(
        {.text = AlphabetCharacter(static_cast<std::uint8_t>(byte)), .kind = TokenKind::kNormal});
  }
  for (auto& merge : ListMerges()) {
    if (data.tokens.size() == static_cast<std::size_t>(vocabulary)) {
      break;
    }
    data.tokens.push_back({.text = merge.first + merge.second, .kind = TokenKind::kNormal});
    data.merges.push_back(std::move(merge));
  }
  BATON_CHECK(data.tokens.size() == static_cast<std::size_t>(vocabulary));
  return data;
}

}  // namespace baton
