#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/tile_rows.h"

// Rotated keys and values into the slots of a block: for each pair of dimensions the keys of the
// run's tokens side by side, for each pair of tokens their values side by side. A line of the block
// is written once for all tokens of the run. Unnamed namespace: see vector_plain.h.
namespace baton {
namespace {

template <typename V>
[[gnu::flatten]] void WriteKeys(const KvRun& run) {
  const int half = run.head_dim / 2;
  const typename V::Float one = V::Set(1.0f);
  ForLanes<V>(half, [&](int i, int n) {
    std::uint32_t words[16][V::kLanes];  // of the tokens
    for (int t = 0; t < run.tokens; ++t) {
      const std::ptrdiff_t angle = static_cast<std::ptrdiff_t>(run.rotation[t]) * half;
      V::StoreWordsFirst(words[t],
                         RotatePairs<V>(run.key + t * run.key_stride, run.cosines + angle,
                                        run.sines + angle, one, one, half, i, n),
                         V::kLanes);
    }
    for (int lane = 0; lane < n; ++lane) {
      std::uint32_t* out = run.keys + (i + lane) * 16 + run.slot;
      for (int t = 0; t < run.tokens; ++t) {
        out[t] = words[t][lane];
      }
    }
  });
}

// The values of one token, which shares its words with a neighbour that is not in the run.
template <typename V>
[[gnu::flatten]] void WriteSingleValue(const KvRun& run, int token) {
  const int slot = run.slot + token;
  const float* value = run.value + token * run.value_stride;
  auto* out = reinterpret_cast<std::uint16_t*>(run.values + slot / 2 * run.head_dim) + slot % 2;
  ForLanes<V>(run.head_dim, [&](int i, int n) {
    std::uint16_t rounded[V::kLanes];
    V::StoreBFloat16First(rounded, V::LoadFirst(value + i, n), n);
    for (int lane = 0; lane < n; ++lane) {
      out[2 * (i + lane)] = rounded[lane];
    }
  });
}

template <typename V>
[[gnu::flatten]] void WriteValuePair(const KvRun& run, int token) {
  const float* even = run.value + token * run.value_stride;
  const float* odd = even + run.value_stride;
  std::uint32_t* out = run.values + (run.slot + token) / 2 * run.head_dim;
  ForLanes<V>(run.head_dim, [&](int i, int n) {
    V::StoreWordsFirst(out + i, V::PackPairs(V::LoadFirst(even + i, n), V::LoadFirst(odd + i, n)),
                       n);
  });
}

template <typename V>
void WriteKvRun(const KvRun& run) {
  WriteKeys<V>(run);
  for (int t = 0; t < run.tokens;) {
    if ((run.slot + t) % 2 == 0 && t + 1 < run.tokens) {
      WriteValuePair<V>(run, t);
      t += 2;
    } else {
      WriteSingleValue<V>(run, t);
      t += 1;
    }
  }
}

}  // namespace
}  // namespace baton
