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
  ByteWriter writer;
  writer.PutBytes({reinterpret_cast<const char*>(previous.bytes.data()), previous.bytes.size()});
  for (const TokenId token : block) {
    writer.Put(token.value());
  }
  return FirstHalf(Sha256Of(writer.bytes()));
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
