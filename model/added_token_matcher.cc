#include "model/added_token_matcher.h"

namespace baton {

void AddedTokenMatcher::Add(std::string_view text, TokenId token) {
  Node node = 0;
  for (const char byte : text) {
    const auto next = static_cast<Node>(tokens_.size());
    const auto [child, is_new] =
        children_.emplace(std::pair(node, static_cast<unsigned char>(byte)), next);
    if (is_new) {
      tokens_.push_back(std::nullopt);
    }
    node = child->second;
  }
  tokens_[node] = token;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::Find(std::string_view text,
                                                                std::size_t from) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    std::optional<Match> longest;
    Node node = 0;
    for (std::size_t end = begin; end < text.size(); ++end) {
      const auto child = children_.find(std::pair(node, static_cast<unsigned char>(text[end])));
      if (child == children_.end()) {
        break;
      }
      node = child->second;
      if (tokens_[node].has_value()) {
        longest = Match{.begin = begin, .end = end + 1, .token = *tokens_[node]};
      }
    }
    if (longest.has_value()) {
      return longest;
    }
  }
  return std::nullopt;
}

}  // namespace baton
