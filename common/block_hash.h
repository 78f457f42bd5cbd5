#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/sha256.h"
#include "common/strong_id.h"

namespace baton {

inline constexpr int kBlockTokens = 16;

// Names the KV content of one full block together with everything before it. Equal in every process
// that serves the same model, tokenizer, salt and zone.
struct PrefixHash {
  std::array<std::uint8_t, 16> bytes{};

  std::string ToString() const {
    return ToHex({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  friend auto operator<=>(const PrefixHash&, const PrefixHash&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const PrefixHash& hash) {
    return H::combine(std::move(state), hash.bytes);
  }
};

// What separates one chain of hashes from another before any token is seen.
struct HashScope {
  Digest model_fingerprint{};
  Digest tokenizer_fingerprint{};
  std::string cache_salt;
  std::string zone;
};

// The hash before the first block: the first 16 bytes of SHA-256 over the four fields of `scope`,
// each written as little-endian uint32 length and bytes.
PrefixHash RootHash(const HashScope& scope);

// hash_i = the first 16 bytes of SHA-256(hash_{i-1} ‖ the block's 16 token ids, each little-endian
// uint32).
PrefixHash NextHash(const PrefixHash& previous, std::span<const TokenId, kBlockTokens> block);

// The hashes of all full blocks of `tokens`; a partial last block has none.
std::vector<PrefixHash> HashBlocks(const PrefixHash& root, std::span<const TokenId> tokens);

}  // namespace baton
