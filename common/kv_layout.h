#pragma once

#include <cstddef>
#include <string>

#include "common/block_hash.h"
#include "common/sha256.h"

namespace baton {

// How one process keeps KV values. The pool is `[N blocks, L layers, layer_bytes]`: a block is one
// contiguous range, and so is any range of layers inside it. What is inside a layer of a block is
// the backend's business; `layout_id` names it and everybody else treats it as opaque bytes.
struct KvLayout {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int block_tokens = kBlockTokens;
  std::string element_type;     // "bf16"
  std::string layout_id;        // e.g. "cpu-kpair-v1"
  std::size_t layer_bytes = 0;  // bytes of one layer of one block

  std::size_t block_bytes() const { return layer_bytes * static_cast<std::size_t>(layers); }
  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

// Everything that must be equal in two workers before KV blocks may pass between them: with all of
// it equal they compute the same tokens from the same bytes.
struct EngineIdentity {
  Digest model_fingerprint{};
  Digest tokenizer_fingerprint{};
  KvLayout kv;
  std::string arithmetic;  // code path that rounds in its own way, e.g. "cpu-avx512bf16"
  double rope_base = 0;
  double rms_epsilon = 0;

  friend bool operator==(const EngineIdentity&, const EngineIdentity&) = default;
};

// SHA-256 over all fields in order, integers and lengths as little-endian uint64, doubles by their
// bits.
Digest LayoutFingerprint(const EngineIdentity& identity);

// "arithmetic: ours cpu-avx2, theirs cpu-plain; layers: ours 30, theirs 32"; empty when equal.
std::string DescribeDifference(const EngineIdentity& ours, const EngineIdentity& theirs);

}  // namespace baton
