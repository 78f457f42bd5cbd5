#include "engine/live_sequence.h"

namespace baton {

std::span<const PrefixHash> LiveSequence::BlockHashes() {
  if (hashes.empty()) {
    return {};
  }
  const auto full = tokens.size() / kBlockTokens;
  for (std::size_t i = hashes.size() - 1; i < full; ++i) {
    hashes.push_back(NextHash(hashes.back(), std::span<const TokenId, kBlockTokens>(
                                                 tokens.data() + i * kBlockTokens, kBlockTokens)));
  }
  return std::span(hashes).subspan(1);
}

PrefixHit FindPrefix(LiveSequence& sequence, const PrefixCache* cache, const LiveSequence* leader) {
  PrefixHit hit;
  if (sequence.wants_prompt_logprobs()) {
    return hit;  // every row of the prompt is wanted
  }
  if (leader != nullptr && leader->holds_prompt() && sequence.output_tokens() == 0) {
    const auto blocks = leader->lease.blocks();
    hit.shared.assign(blocks.begin(), blocks.begin() + BlocksForTokens(sequence.known()));
    hit.tokens = sequence.known();
  } else if (cache != nullptr) {
    hit.shared = cache->Find(sequence.BlockHashes(), sequence.tokens);
    hit.tokens = static_cast<int>(hit.shared.size()) * kBlockTokens;
  }
  if (hit.tokens < sequence.known()) {
    return hit;
  }
  // Nothing is left to compute, but the next token is sampled from the last one's row: that is
  // computed again, in a block of its own. A source of KV is asked for that block instead.
  const BlockId last = hit.shared.back();
  hit.shared.pop_back();
  if (sequence.importing) {
    hit.tokens = static_cast<int>(hit.shared.size()) * kBlockTokens;
  } else {
    hit.copied = last;
    hit.tokens = sequence.known() - 1;
  }
  return hit;
}

}  // namespace baton
