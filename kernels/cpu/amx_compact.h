#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/amx_blocks.h"
#include "kernels/cpu/kernel_table.h"

// Up to 32 rows times panels of compact weights: a chunk is unpacked to what it is in the packed
// weight, bit by bit, while the one before it is multiplied. Unnamed namespace: see vector_plain.h.
namespace baton {
namespace {

// The chunks of neighbouring panels, one after the other, unpacked.
class CompactStream {
 public:
  // `chunks`: in all. REQUIRES: at least 1.
  CompactStream(const CompactPanels& panels, std::ptrdiff_t chunks)
      : next_(panels.data),
        chunk_(panels.first_chunk),
        left_(chunks),
        exception_(panels.exceptions) {
    std::uint8_t high[16];
    std::uint8_t low[16];
    for (int i = 0; i < 16; ++i) {
      high[i] = static_cast<std::uint8_t>(panels.exponents[i] >> 1);
      low[i] = static_cast<std::uint8_t>(panels.exponents[i] << 7);
    }
    exponents_ = {Broadcast(high), Broadcast(low)};
    Unpack();
  }

  // The chunk at hand, [16, 32] words; valid until the call after the next one.
  const std::byte* chunk() const { return buffers_[1 - target_]; }

  // Goes on to the next chunk, if there is one.
  void Unpack() {
    if (left_ == 0) {
      return;
    }
    std::byte* const out = buffers_[target_];
    const std::byte* const in = next_;
    const Exponents exponents = exponents_;  // in registers, whatever `out` is taken for
#pragma GCC unroll 8
    for (int pair = 0; pair < kCompactChunkWords / 2; ++pair) {
      UnpackPair(in + pair * kCompactPairBytes, exponents, out + pair * 2 * kPanelRowBytes);
    }
    for (; exception_->chunk == chunk_; ++exception_) {
      std::memcpy(out + exception_->value * sizeof(exception_->bits), &exception_->bits,
                  sizeof(exception_->bits));
    }
    next_ = in + kCompactChunkBytes;
    ++chunk_;
    --left_;
    target_ = 1 - target_;
  }

 private:
  // By index, in every 16 bytes: the 8 bits of an exponent lie across both bytes of a value.
  struct Exponents {
    __m512i high;  // 7 bits, below the sign
    __m512i low;   // 1 bit, above the fraction
  };

  static __m512i Broadcast(const std::uint8_t* table) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  }

  static void UnpackPair(const std::byte* in, const Exponents& exponents, std::byte* out) {
    const __m512i nibble = _mm512_set1_epi8(0x0f);
    const __m512i indices = _mm512_load_si512(in + 128);
    UnpackRow(in, _mm512_and_si512(indices, nibble), exponents, out);
    UnpackRow(in + 64, _mm512_and_si512(_mm512_srli_epi16(indices, 4), nibble), exponents,
              out + kPanelRowBytes);
#pragma GCC unroll 3
    for (int line = 0; line < kCompactPairBytes / 64; ++line) {
      __builtin_prefetch(in + kPrefetchBytes + line * 64, 0, 2);
    }
  }

  static void UnpackRow(const std::byte* in,
                        __m512i index,
                        const Exponents& exponents,
                        std::byte* out) {
    constexpr int kFirstOrSecondMasked = 0xf8;  // a | (b & c)
    const __m512i rest = _mm512_load_si512(in);
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    const __m512i high = _mm512_ternarylogic_epi32(_mm512_shuffle_epi8(exponents.high, index), rest,
                                                   sign, kFirstOrSecondMasked);
    const __m512i low = _mm512_ternarylogic_epi32(_mm512_shuffle_epi8(exponents.low, index), rest,
                                                  _mm512_set1_epi8(0x7f), kFirstOrSecondMasked);
    _mm512_store_si512(out, _mm512_unpacklo_epi8(low, high));
    _mm512_store_si512(out + 64, _mm512_unpackhi_epi8(low, high));
  }

  alignas(64) std::byte buffers_[2][kCompactChunkWords * kPanelRowBytes];
  Exponents exponents_;
  const std::byte* next_;
  std::uint32_t chunk_;  // that `next_` is
  std::ptrdiff_t left_;
  const CompactException* exception_;
  int target_ = 0;
};

// As MultiplyBlock, with the next panel of a stream.
template <int kRowTiles>
[[gnu::noinline]] void MultiplyCompactBlock(const AmxInput& args,
                                            const RowTile (&tiles)[2],
                                            CompactStream& stream) {
  ZeroBlock<kRowTiles>();
  InputChunk input = FirstChunk(args, tiles);
  WeightStream nothing;
  for (int chunk = args.word_columns / kChunkWords; chunk > 0; --chunk) {
    const std::byte* const weights = stream.chunk();
    stream.Unpack();
    MultiplyChunk<kRowTiles, 0>(input, weights, nothing);
    input.first += kTileRowBytes;
  }
}

}  // namespace
}  // namespace baton
