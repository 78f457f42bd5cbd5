#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

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
// Agrees id by id with the Hugging Face `tokenizers` library on the same data. Like there, a byte for which the
// vocabulary has no token of its own becomes the unknown token, or nothing when the model names none: SmolLM2 has no
// token for six control characters and for the planes 4 to 11, which hold no assigned character.
//
// Immutable after construction and therefore thread-safe.
class Tokenizer {
 public:
  // Checks `data` in itself; INVALID_ARGUMENT or UNIMPLEMENTED name the offending entry, not the file.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(TokenizerData data);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // `text` must be UTF-8: INVALID_ARGUMENT with the byte offset otherwise. With `special`, control tokens written out
  // in the text become their ids; without it they are plain text. Adds no token of its own. O(n log n).
  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text, bool special) const;

  // The bytes the token stands for, not necessarily UTF-8 by themselves; a control token's own text; empty for an id
  // that the vocabulary leaves unused. Valid as long as the tokenizer. REQUIRES: id < vocabulary().
  std::string_view TokenBytes(TokenId id) const;

  // REQUIRES: id < vocabulary().
  bool IsControl(TokenId id) const;

  // The number of ids, V of the model; every id Encode gives is below it.
  int vocabulary() const { return static_cast<int>(bytes_.size()); }
  TokenId bos() const { return data_.bos; }
  TokenId eos() const { return data_.eos; }
  // True for every token with which the model ends its turn, eos() among them.
  bool IsEndOfSequence(TokenId id) const;

  // DESIGN.md section 3, "Block identity": SHA-256 over token strings, merges and special flags in order. The same
  // tokenizer read from GGUF and from tokenizer.json has the same fingerprint.
  const Digest& fingerprint() const { return fingerprint_; }

 private:
  explicit Tokenizer(TokenizerData data);

  void EncodePlain(std::string_view text, std::vector<TokenId>& ids) const;

  const TokenizerData data_;
  std::vector<std::string> bytes_;                     // by id
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  std::unique_ptr<MergeTable> merges_;
  std::unique_ptr<AddedTokenMatcher> always_matched_;  // user-defined tokens
  std::unique_ptr<AddedTokenMatcher> special_matched_; // user-defined and control tokens
  Digest fingerprint_{};
};

}  // namespace baton
