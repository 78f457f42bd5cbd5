#include "model/gguf_tokenizer.h"

#include <array>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace baton {
namespace {

// The numbers of tokenizer.ggml.token_type.
constexpr int kNormal = 1;
constexpr int kUnknown = 2;
constexpr int kControl = 3;
constexpr int kUserDefined = 4;
constexpr int kUnused = 5;

struct PreTokenizerName {
  std::string_view name;
  PreTokenizerKind kind;
};

// Names of tokenizer.ggml.pre whose rule is one of ours. There are many more, each with a pattern
// of its own.
constexpr std::array kPreTokenizers = {
    PreTokenizerName{"gpt-2", PreTokenizerKind::kGpt2},
    PreTokenizerName{"smollm", PreTokenizerKind::kGpt2SplitDigits},
    PreTokenizerName{"starcoder", PreTokenizerKind::kGpt2SplitDigits},
    PreTokenizerName{"refact", PreTokenizerKind::kGpt2SplitDigits},
    PreTokenizerName{"codeshell", PreTokenizerKind::kGpt2SplitDigits},
};

absl::StatusOr<PreTokenizerKind> ReadPreTokenizer(const GgufFile& gguf) {
  static constexpr char kKey[] = "tokenizer.ggml.pre";
  ASSIGN_OR_RETURN(const std::string name, gguf.ReadString(kKey));
  for (const PreTokenizerName& known : kPreTokenizers) {
    if (name == known.name) {
      return known.kind;
    }
  }
  return UnsupportedFile(gguf.Place(kKey), absl::StrCat("pre-tokenizer '", Printable(name), "'"));
}

absl::Status ReadTokens(const GgufFile& gguf, TokenizerData& data) {
  static constexpr char kTokens[] = "tokenizer.ggml.tokens";
  static constexpr char kTypes[] = "tokenizer.ggml.token_type";
  ASSIGN_OR_RETURN(std::vector<std::string> texts, gguf.ReadStrings(kTokens));
  ASSIGN_OR_RETURN(const std::vector<int> types, gguf.ReadCounts(kTypes));
  if (types.size() != texts.size()) {
    return DamagedFile(gguf.Place(kTypes),
                       absl::StrCat(types.size(), " types for ", texts.size(), " tokens"));
  }
  for (std::size_t id = 0; id < texts.size(); ++id) {
    TokenEntry entry{.text = std::move(texts[id])};
    switch (types[id]) {
      case kNormal:
        entry.kind = TokenKind::kNormal;
        break;
      case kUnknown:
      case kControl:
        entry.kind = TokenKind::kControl;
        break;
      case kUserDefined:
        entry.kind = TokenKind::kUserDefined;
        break;
      case kUnused:
        entry.kind = TokenKind::kUnused;
        break;
      default:
        return DamagedFile(gguf.Place(kTypes), absl::StrCat("type ", types[id], " of token ", id,
                                                            " in byte-level BPE"));
    }
    data.tokens.push_back(std::move(entry));
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const GgufFile& gguf, TokenizerData& data) {
  static constexpr char kKey[] = "tokenizer.ggml.merges";
  ASSIGN_OR_RETURN(const std::vector<std::string> merges, gguf.ReadStrings(kKey));
  data.merges.reserve(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string& merge = merges[rank];
    const std::size_t space = merge.find(' ');
    if (space == std::string::npos || merge.find(' ', space + 1) != std::string::npos) {
      return DamagedFile(gguf.Place(kKey), absl::StrCat("merge ", rank, ", '", Printable(merge),
                                                        "', is not two tokens and a space"));
    }
    data.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenId> ReadTokenId(const GgufFile& gguf,
                                    const std::string& key,
                                    const TokenizerData& data) {
  ASSIGN_OR_RETURN(const int id, gguf.ReadCount(key));
  if (static_cast<std::size_t>(id) >= data.tokens.size()) {
    return DamagedFile(gguf.Place(key),
                       absl::StrCat("token ", id, " of a vocabulary of ", data.tokens.size()));
  }
  return TokenId(static_cast<std::uint32_t>(id));
}

absl::Status RefuseTrue(const GgufFile& gguf, const std::string& key) {
  if (gguf.Has(key)) {
    ASSIGN_OR_RETURN(const bool asked, gguf.ReadBool(key));
    if (asked) {
      return UnsupportedFile(gguf.Place(key), "is true");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerData> ReadGgufTokenizer(const GgufFile& gguf) {
  static constexpr char kModel[] = "tokenizer.ggml.model";
  ASSIGN_OR_RETURN(const std::string model, gguf.ReadString(kModel));
  if (model != "gpt2") {
    return UnsupportedFile(gguf.Place(kModel),
                           absl::StrCat("tokenizer model '", Printable(model),
                                        "', only byte-level BPE (gpt2) is known"));
  }
  for (const char* key : {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token",
                          "tokenizer.ggml.add_space_prefix"}) {
    RETURN_IF_ERROR(RefuseTrue(gguf, key));
  }
  TokenizerData data;
  ASSIGN_OR_RETURN(data.pre_tokenizer, ReadPreTokenizer(gguf));
  RETURN_IF_ERROR(ReadTokens(gguf, data));
  RETURN_IF_ERROR(ReadMerges(gguf, data));
  ASSIGN_OR_RETURN(data.bos, ReadTokenId(gguf, "tokenizer.ggml.bos_token_id", data));
  ASSIGN_OR_RETURN(data.eos, ReadTokenId(gguf, "tokenizer.ggml.eos_token_id", data));
  if (gguf.Has("tokenizer.ggml.eot_token_id")) {
    ASSIGN_OR_RETURN(const TokenId end, ReadTokenId(gguf, "tokenizer.ggml.eot_token_id", data));
    data.more_ends.push_back(end);
  }
  for (const char* key : {"tokenizer.ggml.unknown_token_id", "tokenizer.ggml.padding_token_id"}) {
    if (gguf.Has(key)) {
      RETURN_IF_ERROR(ReadTokenId(gguf, key, data).status());
    }
  }
  return data;
}

}  // namespace baton
