#include "model/huggingface_tokenizer.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/json_reader.h"

namespace baton {
namespace {

// "Sequence[Digits, ByteLevel]": the `type` of a part, and of the parts inside it.
std::string TypeOf(const nlohmann::json& part) {
  const auto type = part.find("type");
  return type != part.end() && type->is_string() ? type->get<std::string>() : "";
}

bool IsFlag(const nlohmann::json& part, const char* key, bool value) {
  const auto found = part.find(key);
  return found != part.end() && found->is_boolean() && found->get<bool>() == value;
}

bool IsSplittingByteLevel(const nlohmann::json& part) {
  // Files older than `use_regex` always split.
  const bool splits = !part.contains("use_regex") || IsFlag(part, "use_regex", true);
  return TypeOf(part) == "ByteLevel" && IsFlag(part, "add_prefix_space", false) && splits;
}

bool IsSingleDigits(const nlohmann::json& part) {
  return TypeOf(part) == "Digits" && IsFlag(part, "individual_digits", true);
}

absl::StatusOr<PreTokenizerKind> ReadPreTokenizer(const JsonReader& reader) {
  static constexpr char kKey[] = "pre_tokenizer";
  const nlohmann::json* part = reader.Find(kKey);
  if (part == nullptr || !part->is_object()) {
    return UnsupportedFile(reader.Place(kKey), "no pre-tokenizer");
  }
  if (IsSplittingByteLevel(*part)) {
    return PreTokenizerKind::kGpt2;
  }
  const auto parts = part->find("pretokenizers");
  if (TypeOf(*part) == "Sequence" && parts != part->end() && parts->is_array()) {
    const nlohmann::json& list = *parts;
    if (list.size() == 1 && IsSplittingByteLevel(list[0])) {
      return PreTokenizerKind::kGpt2;
    }
    if (list.size() == 2 && IsSingleDigits(list[0]) && IsSplittingByteLevel(list[1])) {
      return PreTokenizerKind::kGpt2SplitDigits;
    }
  }
  return UnsupportedFile(reader.Place(kKey),
                         absl::StrCat("pre-tokenizer ", Printable(part->dump(-1, ' ', true))));
}

absl::Status RefuseOtherParts(const JsonReader& reader) {
  for (const char* key : {"normalizer", "truncation", "padding"}) {
    if (const nlohmann::json* part = reader.Find(key); part != nullptr) {
      return UnsupportedFile(reader.Place(key), Printable(part->dump(-1, ' ', true)));
    }
  }
  for (const char* key : {"post_processor", "decoder"}) {
    const nlohmann::json* part = reader.Find(key);
    if (part != nullptr && (!part->is_object() || TypeOf(*part) != "ByteLevel")) {
      return UnsupportedFile(reader.Place(key), Printable(part->dump(-1, ' ', true)));
    }
  }
  return absl::OkStatus();
}

// What the BPE model may hold beside vocabulary and merges only changes tokens when it is set.
absl::Status RefuseModelOptions(const JsonReader& model) {
  ASSIGN_OR_RETURN(const auto type, model.String("type"));
  if (type.has_value() && *type != "BPE") {
    return UnsupportedFile(model.Place("model"),
                           absl::StrCat("tokenizer model '", Printable(*type), "'"));
  }
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const nlohmann::json* value = model.Find(key);
    const std::string written = value == nullptr ? "\"\"" : value->dump(-1, ' ', true);
    if (written != "\"\"" && written != "0" && written != "0.0") {
      return UnsupportedFile(model.Place(key), Printable(written));
    }
  }
  for (const char* key : {"fuse_unk", "byte_fallback", "ignore_merges"}) {
    ASSIGN_OR_RETURN(const auto set, model.Bool(key));
    if (set.value_or(false)) {
      return UnsupportedFile(model.Place(key), "is true");
    }
  }
  return absl::OkStatus();
}

// Puts `entry` at `id`; an id may be named twice only with the same text.
absl::Status PutToken(const FilePlace& place,
                      const nlohmann::json& id,
                      TokenEntry entry,
                      std::vector<TokenEntry>& tokens) {
  if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= tokens.size()) {
    return DamagedFile(place, absl::StrCat("token '", Printable(entry.text), "' has the id ",
                                           Printable(id.dump(-1, ' ', true)), ", not in 0 to ",
                                           tokens.size() - 1));
  }
  TokenEntry& slot = tokens[id.get<std::size_t>()];
  if (slot.kind != TokenKind::kUnused && slot.text != entry.text) {
    return DamagedFile(
        place, absl::StrCat("tokens '", Printable(slot.text), "' and '", Printable(entry.text),
                            "' have the same id ", id.get<std::size_t>()));
  }
  slot = std::move(entry);
  return absl::OkStatus();
}

absl::Status ReadVocabulary(const JsonReader& model, std::vector<TokenEntry>& tokens) {
  const nlohmann::json* vocabulary = model.Find("vocab");
  if (vocabulary == nullptr || !vocabulary->is_object()) {
    return DamagedFile(model.Place("vocab"), "no object that maps tokens to ids");
  }
  for (const auto& [text, id] : vocabulary->items()) {
    RETURN_IF_ERROR(
        PutToken(model.Place("vocab"), id, {.text = text, .kind = TokenKind::kNormal}, tokens));
  }
  return absl::OkStatus();
}

absl::Status ReadAddedTokens(const JsonDocument& document,
                             const JsonReader& reader,
                             std::vector<TokenEntry>& tokens) {
  static constexpr char kKey[] = "added_tokens";
  const nlohmann::json* added = reader.Find(kKey);
  if (added == nullptr) {
    return absl::OkStatus();
  }
  if (!added->is_array()) {
    return DamagedFile(reader.Place(kKey), "not an array");
  }
  for (const nlohmann::json& token : *added) {
    const JsonReader entry(document, token);
    ASSIGN_OR_RETURN(const auto content, entry.String("content"));
    ASSIGN_OR_RETURN(const auto special, entry.Bool("special"));
    if (!content.has_value() || !special.has_value() || entry.Find("id") == nullptr) {
      return DamagedFile(reader.Place(kKey), "an entry without id, content or special");
    }
    for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
      ASSIGN_OR_RETURN(const auto set, entry.Bool(flag));
      if (set.value_or(false)) {
        return UnsupportedFile(reader.Place(kKey),
                               absl::StrCat(flag, " of token '", Printable(*content), "'"));
      }
    }
    const TokenKind kind = *special ? TokenKind::kControl : TokenKind::kUserDefined;
    RETURN_IF_ERROR(
        PutToken(reader.Place(kKey), *entry.Find("id"), {.text = *content, .kind = kind}, tokens));
  }
  return absl::OkStatus();
}

// A merge is "left right" or, in newer files, ["left", "right"].
absl::Status ReadMerges(const JsonReader& model, TokenizerData& data) {
  static constexpr char kKey[] = "merges";
  const nlohmann::json* merges = model.Find(kKey);
  if (merges == nullptr || !merges->is_array()) {
    return DamagedFile(model.Place(kKey), "no array of merges");
  }
  data.merges.reserve(merges->size());
  for (const nlohmann::json& merge : *merges) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      data.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    const std::string text = merge.is_string() ? merge.get<std::string>() : "";
    const std::size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      return DamagedFile(model.Place(kKey),
                         absl::StrCat("merge ", data.merges.size(), ", ",
                                      Printable(merge.dump(-1, ' ', true)), ", is not two tokens"));
    }
    data.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return absl::OkStatus();
}

absl::Status ReadUnknown(const JsonReader& model, TokenizerData& data) {
  static constexpr char kKey[] = "unk_token";
  ASSIGN_OR_RETURN(const auto text, model.String(kKey));
  if (!text.has_value()) {
    return absl::OkStatus();
  }
  for (std::size_t id = 0; id < data.tokens.size(); ++id) {
    if (data.tokens[id].kind != TokenKind::kUnused && data.tokens[id].text == *text) {
      data.unknown = TokenId(static_cast<std::uint32_t>(id));
      return absl::OkStatus();
    }
  }
  return DamagedFile(model.Place(kKey), absl::StrCat("'", Printable(*text), "' is no token"));
}

}  // namespace

absl::StatusOr<TokenizerData> ReadHuggingFaceTokenizer(const JsonDocument& document,
                                                       int vocabulary) {
  const JsonReader reader(document);
  RETURN_IF_ERROR(RefuseOtherParts(reader));
  const nlohmann::json* model_part = reader.Find("model");
  if (model_part == nullptr || !model_part->is_object()) {
    return DamagedFile(reader.Place("model"), "the key is missing");
  }
  const JsonReader model(document, *model_part);
  RETURN_IF_ERROR(RefuseModelOptions(model));
  TokenizerData data;
  data.tokens.resize(static_cast<std::size_t>(vocabulary));
  ASSIGN_OR_RETURN(data.pre_tokenizer, ReadPreTokenizer(reader));
  RETURN_IF_ERROR(ReadVocabulary(model, data.tokens));
  RETURN_IF_ERROR(ReadAddedTokens(document, reader, data.tokens));
  RETURN_IF_ERROR(ReadMerges(model, data));
  RETURN_IF_ERROR(ReadUnknown(model, data));
  return data;
}

}  // namespace baton
