#include "common/block_hash.h"

#include <algorithm>

#include "common/byte_io.h"

namespace baton {
namespace {

PrefixHash FirstHalf(const Digest& digest) {
  PrefixHash hash;
  std::copy_n(digest.begin(), hash.bytes.size(), hash.bytes.begin());
  return hash;
}

}  // namespace

PrefixHash RootHash(const HashScope& scope) {
  ByteWriter writer;
  for (const std::string_view field :
       {AsBytes(scope.model_fingerprint), AsBytes(scope.tokenizer_fingerprint),
        std::string_view(scope.cache_salt), std::string_view(scope.zone)}) {
    writer.Put(static_cast<std::uint32_t>(field.size()));
    writer.PutBytes(field);
  }
  return FirstHalf(Sha256Of(writer.bytes()));
}

PrefixHash NextHash(const PrefixHash& previous, std::span<const TokenId, kBlockTokens> block) {
  // Of a fixed size, so no buffer that grows: this runs for every block of every prompt.
  std::array<char, sizeof(previous.bytes) + 4 * kBlockTokens> message;
  std::copy_n(previous.bytes.begin(), previous.bytes.size(), message.begin());
  char* next = message.data() + previous.bytes.size();
  for (const TokenId token : block) {
    for (int shift = 0; shift < 32; shift += 8) {
      *next++ = static_cast<char>(token.value() >> shift & 0xff);
    }
  }
  return FirstHalf(Sha256Of({message.data(), message.size()}));
}

std::vector<PrefixHash> HashBlocks(const PrefixHash& root, std::span<const TokenId> tokens) {
  std::vector<PrefixHash> hashes;
  hashes.reserve(tokens.size() / kBlockTokens);
  PrefixHash previous = root;
  for (std::size_t begin = 0; begin + kBlockTokens <= tokens.size(); begin += kBlockTokens) {
    previous = NextHash(previous, tokens.subspan(begin).first<kBlockTokens>());
    hashes.push_back(previous);
  }
  return hashes;
}

}  // namespace baton
