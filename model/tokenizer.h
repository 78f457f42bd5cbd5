#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/sha256.h"
#include "common/strong_id.h"
#include "model/tokenizer_data.h"

namespace baton {

class AddedTokenMatcher;
class MergeTable;
class PreTokenizer;

// Byte-level BPE: text to token ids and token ids to bytes.
//
// Agrees id by id with the Hugging Face `tokenizers` library on the same data. Like there, a byte
// for which the vocabulary has no token of its own becomes the unknown token, or nothing when the
// model names none: SmolLM2 has no token for six control characters and for the planes 4 to 11,
// which hold no assigned character.
//
// Immutable after construction and therefore thread-safe.
class Tokenizer {
 public:
  // Checks `data` in itself; INVALID_ARGUMENT or UNIMPLEMENTED name the offending entry, not the
  // file.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(TokenizerData data);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // `text` must be UTF-8: INVALID_ARGUMENT with the byte offset otherwise. With `special`, control
  // tokens written out in the text become their ids; without it they are plain text. Adds no token
  // of its own. O(n log n).
  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text, bool special) const;

  // The bytes the token stands for, not necessarily UTF-8 by themselves; a control token's own
  // text; empty for an id that the vocabulary leaves unused. Valid as long as the tokenizer.
  // REQUIRES: id < vocabulary().
  std::string_view TokenBytes(TokenId id) const;

  // REQUIRES: id < vocabulary().
  bool IsControl(TokenId id) const;

  // The number of ids, V of the model; every id Encode gives is below it.
  int vocabulary() const { return static_cast<int>(bytes_.size()); }
  TokenId bos() const { return bos_; }
  TokenId eos() const { return eos_; }
  // True for every token with which the model ends its turn, eos() among them.
  bool IsEndOfSequence(TokenId id) const;

  // The control token that is written `text`.
  std::optional<TokenId> FindControl(std::string_view text) const;

  // DESIGN.md section 3, "Block identity": SHA-256 over token strings, merges and special flags in
  // order. The same tokenizer read from GGUF and from tokenizer.json has the same fingerprint.
  const Digest& fingerprint() const { return fingerprint_; }

 private:
  Tokenizer(TokenizerData data,
            std::vector<std::string> bytes,
            std::unique_ptr<const MergeTable> merges);

  // Appends the ids of a text in which no added token is looked for.
  absl::Status EncodePlain(std::string_view text, std::vector<TokenId>& ids) const;

  std::vector<std::string> bytes_;  // by id
  std::vector<TokenKind> kinds_;    // by id
  TokenId bos_;
  TokenId eos_;
  std::vector<TokenId> ends_;  // eos_ among them
  std::unique_ptr<const PreTokenizer> pre_tokenizer_;
  std::unique_ptr<const MergeTable> merges_;
  std::unique_ptr<const AddedTokenMatcher> plain_matcher_;    // user-defined tokens
  std::unique_ptr<const AddedTokenMatcher> special_matcher_;  // user-defined and control tokens
  Digest fingerprint_;
};

}  // namespace baton
