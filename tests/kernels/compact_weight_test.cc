#include "kernels/cpu/compact_weight.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <vector>

#include "kernels/bfloat16.h"

namespace baton {
namespace {

constexpr int kWordColumns = 48;  // three chunks a panel
constexpr std::size_t kPanelWords = std::size_t{kWordColumns} * kPanelColumns;

// Weights as training leaves them: normal values.
std::vector<std::uint32_t> NormalWords(std::size_t count) {
  std::mt19937_64 generator(7);
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<std::uint32_t> words(count);
  for (std::uint32_t& word : words) {
    word = ToBFloat16(normal(generator)).bits |
           static_cast<std::uint32_t>(ToBFloat16(normal(generator)).bits) << 16;
  }
  return words;
}

// By the description in compact_weight.h, value by value.
std::vector<std::uint32_t> Unpack(const CompactPanels& panels, std::size_t chunks) {
  std::vector<std::uint32_t> words(chunks * kCompactChunkWords * kPanelColumns);
  const CompactException* exception = panels.exceptions;
  const auto set = [&](std::size_t value, unsigned bits) {
    const unsigned shift = value % 2 * 16;
    words[value / 2] = (words[value / 2] & ~(0xffffu << shift)) | bits << shift;
  };
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    const auto* in =
        reinterpret_cast<const std::uint8_t*>(panels.data) + chunk * kCompactChunkBytes;
    const std::size_t first = chunk * kCompactChunkWords * 2 * kPanelColumns;
    for (std::size_t row = 0; row < kCompactChunkWords; ++row) {
      const std::uint8_t* const pair = in + row / 2 * kCompactPairBytes;
      for (std::size_t value = 0; value < 64; ++value) {
        const std::size_t half = value % 32;
        const std::size_t place = half / 8 * 16 + (value >= 32 ? 8 : 0) + half % 8;
        const unsigned rest = pair[row % 2 * 64 + place];
        const unsigned index = pair[128 + place] >> (row % 2 * 4) & 0x0f;
        set(first + row * 64 + value, (rest & 0x80) << 8 |
                                          static_cast<unsigned>(panels.exponents[index]) << 7 |
                                          (rest & 0x7f));
      }
    }
    for (; exception->chunk == panels.first_chunk + chunk; ++exception) {
      set(first + exception->value, exception->bits);
    }
  }
  return words;
}

TEST(CompactWeightTest, EveryBitComesBack) {
  std::vector<std::uint32_t> words = NormalWords(4 * kPanelWords);
  // Zeros of both signs, the smallest and the largest, an infinity, and NaN with a payload; at the
  // ends of rows, chunks and panels.
  words[0] = 0x80000000u;
  words[31] = 0x00010001u;
  words[kPanelWords - 1] = 0x7f80ff80u;
  words[kPanelWords] = 0x7f7fff7fu;
  words[3 * kPanelWords + 100] = 0x7fc1ffffu;
  words.back() = 0x00008000u;
  HugePageArena arena;

  const std::optional<CompactWeight> compact = CompactWeight::Create(words, kWordColumns, arena);

  ASSERT_TRUE(compact.has_value());
  EXPECT_EQ(compact->bytes(), words.size() * sizeof(std::uint32_t) * 3 / 4);
  EXPECT_EQ(Unpack(compact->panels(0), 12), words);
  // From a panel on, as a thread's share begins.
  EXPECT_EQ(Unpack(compact->panels(3), 3),
            std::vector<std::uint32_t>(words.end() - static_cast<std::ptrdiff_t>(kPanelWords),
                                       words.end()));
}

TEST(CompactWeightTest, NoneOffTheGridOfChunks) {
  HugePageArena arena;
  EXPECT_FALSE(CompactWeight::Create(NormalWords(47 * kPanelColumns), 47, arena).has_value());
}

TEST(CompactWeightTest, NoneWhereMoreThanOneInTwoThousandIsAnException) {
  std::vector<std::uint32_t> words(2 * kPanelWords, 0x3f803f80u);  // 6,144 values, one exponent
  for (std::uint32_t i = 0; i < 15; ++i) {                         // 16 with it
    words[i] = 0x3f803f80u + (i + 1) * 0x00800080u;
  }
  words[20] = 0x3f800080u;
  words[21] = 0x3f800100u;
  words[22] = 0x3f800180u;
  HugePageArena arena;
  EXPECT_TRUE(CompactWeight::Create(words, kWordColumns, arena).has_value());

  words[23] = 0x3f800200u;

  EXPECT_FALSE(CompactWeight::Create(words, kWordColumns, arena).has_value());
}

}  // namespace
}  // namespace baton
