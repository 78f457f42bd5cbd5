#include "model/merge_table.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "model/byte_alphabet.h"
#include "model/file_error.h"

namespace baton {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

// A token of the piece so far, in a list by position.
struct Symbol {
  TokenId token;
  std::uint32_t previous = kNone;
  std::uint32_t next = kNone;
  bool merged_away = false;
};

// A merge that was possible when it was queued.
struct Candidate {
  std::uint32_t rank = 0;
  std::uint32_t position = 0;  // of the left symbol
  TokenId left;
  TokenId right;
  TokenId result;
};

// std heaps put the largest first: the lowest rank, then the leftmost, must compare as largest.
bool ComesLater(const Candidate& a, const Candidate& b) {
  return std::pair(a.rank, a.position) > std::pair(b.rank, b.position);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MergeTable>> MergeTable::Create(const TokenizerData& data) {
  absl::flat_hash_map<std::string, TokenId> ids;
  ids.reserve(data.tokens.size());
  for (std::size_t i = 0; i < data.tokens.size(); ++i) {
    const TokenEntry& token = data.tokens[i];
    if (token.kind != TokenKind::kUnused &&
        !ids.emplace(token.text, TokenId(static_cast<std::uint32_t>(i))).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", i, ", '", Printable(token.text), "', is there twice"));
    }
  }
  std::unique_ptr<MergeTable> table(new MergeTable());
  table->unknown_ = data.unknown;
  for (std::size_t byte = 0; byte < table->byte_tokens_.size(); ++byte) {
    const auto found = ids.find(AlphabetCharacter(static_cast<std::uint8_t>(byte)));
    if (found != ids.end() && data.tokens[found->second.value()].kind == TokenKind::kNormal) {
      table->byte_tokens_[byte] = found->second;
    }
  }
  table->merges_.reserve(data.merges.size());
  for (std::size_t rank = 0; rank < data.merges.size(); ++rank) {
    const auto& [left_text, right_text] = data.merges[rank];
    const auto left = ids.find(left_text);
    const auto right = ids.find(right_text);
    const auto result = ids.find(left_text + right_text);
    const std::string what = absl::StrCat("merge ", rank, ", '", Printable(left_text), " ",
                                          Printable(right_text), "', ");
    if (left == ids.end() || right == ids.end() || result == ids.end()) {
      return absl::InvalidArgumentError(what + "is of or makes what is no token");
    }
    if (data.tokens[result->second.value()].kind == TokenKind::kControl) {
      return absl::InvalidArgumentError(what + "makes a control token");
    }
    const Merge merge{.rank = static_cast<std::uint32_t>(rank), .result = result->second};
    if (!table->merges_.emplace(std::pair(left->second, right->second), merge).second) {
      return absl::InvalidArgumentError(what + "is there twice");
    }
  }
  return table;
}

const MergeTable::Merge* MergeTable::Find(TokenId left, TokenId right) const {
  const auto found = merges_.find(std::pair(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void MergeTable::Apply(std::string_view piece, std::vector<TokenId>& ids) const {
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  for (const char byte : piece) {
    const auto& token = byte_tokens_[static_cast<unsigned char>(byte)];
    if (!token.has_value() && !unknown_.has_value()) {
      continue;
    }
    const auto position = static_cast<std::uint32_t>(symbols.size());
    if (position > 0) {
      symbols.back().next = position;
    }
    symbols.push_back({.token = token.has_value() ? *token : *unknown_,
                       .previous = position > 0 ? position - 1 : kNone});
  }

  std::vector<Candidate> heap;
  const auto queue = [&](std::uint32_t position) {
    const Symbol& left = symbols[position];
    if (left.next == kNone) {
      return;
    }
    const Symbol& right = symbols[left.next];
    if (const Merge* merge = Find(left.token, right.token); merge != nullptr) {
      heap.push_back({merge->rank, position, left.token, right.token, merge->result});
      std::push_heap(heap.begin(), heap.end(), ComesLater);
    }
  };
  for (std::uint32_t position = 0; position < symbols.size(); ++position) {
    queue(position);
  }
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), ComesLater);
    const Candidate candidate = heap.back();
    heap.pop_back();
    Symbol& left = symbols[candidate.position];
    // Either symbol may have grown or gone since the merge was queued.
    if (left.merged_away || left.token != candidate.left || left.next == kNone ||
        symbols[left.next].token != candidate.right) {
      continue;
    }
    Symbol& right = symbols[left.next];
    right.merged_away = true;
    left.token = candidate.result;
    left.next = right.next;
    if (left.next != kNone) {
      symbols[left.next].previous = candidate.position;
    }
    if (left.previous != kNone) {
      queue(left.previous);
    }
    queue(candidate.position);
  }

  if (symbols.empty()) {
    return;
  }
  // The first symbol is never merged away: a merge keeps its left one.
  for (std::uint32_t position = 0; position != kNone; position = symbols[position].next) {
    ids.push_back(symbols[position].token);
  }
}

}  // namespace baton
