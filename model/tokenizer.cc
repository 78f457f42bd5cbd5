#include "model/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/byte_io.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "model/added_token_matcher.h"
#include "model/byte_alphabet.h"
#include "model/file_error.h"
#include "model/merge_table.h"
#include "model/pre_tokenizer.h"

namespace baton {
namespace {

// Above every message a server accepts; keeps positions inside a piece within 32 bits.
constexpr std::size_t kLongestText = std::size_t{1} << 30;

// The bytes each token stands for, by id.
absl::StatusOr<std::vector<std::string>> DecodeTokens(const TokenizerData& data) {
  std::vector<std::string> bytes;
  bytes.reserve(data.tokens.size());
  for (std::size_t id = 0; id < data.tokens.size(); ++id) {
    const TokenEntry& token = data.tokens[id];
    if (token.kind == TokenKind::kUnused) {
      bytes.emplace_back();
      continue;
    }
    if (token.text.empty() || FindInvalidUtf8(token.text).has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", id, ", '", Printable(token.text), "', is empty or not UTF-8"));
    }
    if (token.kind != TokenKind::kNormal) {
      bytes.push_back(token.text);
      continue;
    }
    auto decoded = BytesOfAlphabetText(token.text);
    if (!decoded.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", id, ", '", Printable(token.text),
                       "', has a character outside the byte-level alphabet"));
    }
    bytes.push_back(*std::move(decoded));
  }
  return bytes;
}

absl::Status CheckIds(const TokenizerData& data) {
  std::vector<TokenId> ids = data.more_ends;
  ids.push_back(data.bos);
  ids.push_back(data.eos);
  if (data.unknown.has_value()) {
    ids.push_back(*data.unknown);
  }
  for (const TokenId id : ids) {
    if (id.value() >= data.tokens.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", id.value(), " of a vocabulary of ", data.tokens.size()));
    }
  }
  return absl::OkStatus();
}

void PutText(std::string_view text, ByteWriter& writer) {
  writer.Put(static_cast<std::uint32_t>(text.size()));
  writer.PutBytes(text);
}

// Counts and lengths are little-endian uint32. The number of tokens; for each its text (empty for
// an unused id) and its kind in one byte; the number of merges; for each its two sides.
Digest Fingerprint(const TokenizerData& data) {
  ByteWriter writer;
  writer.Put(static_cast<std::uint32_t>(data.tokens.size()));
  for (const TokenEntry& token : data.tokens) {
    PutText(token.kind == TokenKind::kUnused ? "" : token.text, writer);
    writer.Put(static_cast<std::uint8_t>(token.kind));
  }
  writer.Put(static_cast<std::uint32_t>(data.merges.size()));
  for (const auto& [left, right] : data.merges) {
    PutText(left, writer);
    PutText(right, writer);
  }
  return Sha256Of(writer.bytes());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(TokenizerData data) {
  if (data.tokens.empty()) {
    return absl::InvalidArgumentError("a vocabulary without tokens");
  }
  RETURN_IF_ERROR(CheckIds(data));
  ASSIGN_OR_RETURN(std::vector<std::string> bytes, DecodeTokens(data));
  ASSIGN_OR_RETURN(std::unique_ptr<MergeTable> merges, MergeTable::Create(data));
  return std::unique_ptr<Tokenizer>(
      new Tokenizer(std::move(data), std::move(bytes), std::move(merges)));
}

Tokenizer::Tokenizer(TokenizerData data,
                     std::vector<std::string> bytes,
                     std::unique_ptr<const MergeTable> merges)
    : bytes_(std::move(bytes)),
      bos_(data.bos),
      eos_(data.eos),
      ends_(data.more_ends),
      pre_tokenizer_(std::make_unique<PreTokenizer>(data.pre_tokenizer)),
      merges_(std::move(merges)),
      fingerprint_(Fingerprint(data)) {
  ends_.push_back(eos_);
  auto plain = std::make_unique<AddedTokenMatcher>();
  auto special = std::make_unique<AddedTokenMatcher>();
  kinds_.reserve(data.tokens.size());
  for (std::size_t i = 0; i < data.tokens.size(); ++i) {
    const TokenKind kind = data.tokens[i].kind;
    const TokenId id(static_cast<std::uint32_t>(i));
    kinds_.push_back(kind);
    if (kind == TokenKind::kUserDefined) {
      plain->Add(bytes_[i], id);
    }
    if (kind == TokenKind::kUserDefined || kind == TokenKind::kControl) {
      special->Add(bytes_[i], id);
    }
  }
  plain_matcher_ = std::move(plain);
  special_matcher_ = std::move(special);
}

Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::vector<TokenId>> Tokenizer::Encode(std::string_view text, bool special) const {
  if (text.size() > kLongestText) {
    return absl::InvalidArgumentError(absl::StrCat("a text of ", text.size(), " bytes, at most ",
                                                   kLongestText, " can be tokenized"));
  }
  if (const auto offset = FindInvalidUtf8(text); offset.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("not UTF-8 at byte ", *offset));
  }
  const AddedTokenMatcher& matcher = special ? *special_matcher_ : *plain_matcher_;
  std::vector<TokenId> ids;
  std::size_t done = 0;
  while (const auto match = matcher.Find(text, done)) {
    RETURN_IF_ERROR(EncodePlain(text.substr(done, match->begin - done), ids));
    ids.push_back(match->token);
    done = match->end;
  }
  RETURN_IF_ERROR(EncodePlain(text.substr(done), ids));
  return ids;
}

absl::Status Tokenizer::EncodePlain(std::string_view text, std::vector<TokenId>& ids) const {
  ASSIGN_OR_RETURN(const std::vector<std::string_view> pieces, pre_tokenizer_->Split(text));
  for (const std::string_view piece : pieces) {
    merges_->Apply(piece, ids);
  }
  return absl::OkStatus();
}

std::string_view Tokenizer::TokenBytes(TokenId id) const {
  BATON_CHECK(id.value() < bytes_.size());
  return bytes_[id.value()];
}

bool Tokenizer::IsControl(TokenId id) const {
  BATON_CHECK(id.value() < kinds_.size());
  return kinds_[id.value()] == TokenKind::kControl;
}

bool Tokenizer::IsEndOfSequence(TokenId id) const {
  return std::find(ends_.begin(), ends_.end(), id) != ends_.end();
}

std::optional<TokenId> Tokenizer::FindControl(std::string_view text) const {
  const auto match = special_matcher_->Find(text, 0);
  const bool whole = match.has_value() && match->begin == 0 && match->end == text.size();
  return whole && IsControl(match->token) ? std::optional(match->token) : std::nullopt;
}

}  // namespace baton
