#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/cuda/kernel_table.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/oracle_comparison.h"

// Kernels that take rows one by one, against the oracles in double precision.
namespace baton {
namespace {

using cuda::Element;
using Bits = std::vector<std::uint16_t>;

// Every element of an array that no kernel wrote: what DeviceArray fills with.
constexpr std::uint16_t kUntouched = 0xffff;

class RowKernelsTest : public ::testing::TestWithParam<Element> {
 protected:
  bool half() const { return GetParam() == Element::kHalf; }
  // The result was rounded once; bounds and their origin: oracle_comparison.h.
  Tolerance tolerance() const { return half() ? kRoundedOnceToHalf : kRoundedOnce; }

  std::uint16_t Round(float x) const { return half() ? ToHalf(x).bits : ToBFloat16(x).bits; }
  float Widen(std::uint16_t bits) const {
    return half() ? ToFloat(Half{bits}) : ToFloat(BFloat16{bits});
  }
  Bits RoundAll(const std::vector<float>& values) const {
    Bits bits;
    for (const float value : values) {
      bits.push_back(Round(value));
    }
    return bits;
  }
  std::vector<double> WidenAll(const Bits& bits) const {
    std::vector<double> values;
    for (const std::uint16_t b : bits) {
      values.push_back(static_cast<double>(Widen(b)));
    }
    return values;
  }
};

// Rows of `width` elements, `stride` apart, from element `offset` of an array.
struct Placement {
  std::size_t offset;
  std::size_t stride;
};

// Rows on 16 bytes with a gap, and rows that start anywhere.
std::vector<Placement> Placements(std::size_t width) {
  return {{0, (width + 15) / 8 * 8}, {1, width + 1 + width % 2}};
}

template <typename T>
std::vector<T> Placed(const std::vector<T>& rows, std::size_t width, const Placement& at) {
  const std::size_t count = rows.size() / width;
  std::vector<T> placed(at.offset + count * at.stride);
  std::memset(static_cast<void*>(placed.data()), 0xff, placed.size() * sizeof(T));
  for (std::size_t r = 0; r < count; ++r) {
    std::copy_n(&rows[r * width], width, &placed[at.offset + r * at.stride]);
  }
  return placed;
}

// The rows again; whatever is around them must be untouched.
template <typename T>
std::vector<T> Taken(const std::vector<T>& placed, std::size_t width, const Placement& at) {
  std::vector<T> rows;
  for (std::size_t i = 0; i < placed.size(); ++i) {
    if (i >= at.offset && (i - at.offset) % at.stride < width) {
      rows.push_back(placed[i]);
    } else {
      const std::vector<T> around = {placed[i]};
      std::uint16_t bits = 0;
      std::memcpy(&bits, around.data(), sizeof(bits));
      EXPECT_EQ(bits, kUntouched) << "element " << i;
    }
  }
  return rows;
}

constexpr std::size_t kWidths[] = {1, 2, 15, 16, 17, 31, 64, 97, 512, 576, 1031, 4096, 4133};

// One launch of rms_norm with input and output in places of their own.
Bits RunRmsNorm(const std::vector<float>& input,
                const std::vector<float>& weight,
                const std::vector<int>& take_rows,
                Element element,
                const Placement& at) {
  const std::size_t width = weight.size();
  const std::size_t rows = take_rows.empty() ? input.size() / width : take_rows.size();
  const DeviceArray<float> input_array(Placed(input, width, at));
  const DeviceArray<float> weight_array(weight);
  const DeviceArray<int> take_array(take_rows);
  const DeviceArray<std::uint16_t> output(at.offset + rows * at.stride);
  EXPECT_EQ(
      KernelsUnderTest().rms_norm({.input = input_array.data() + at.offset,
                                   .input_stride = static_cast<std::int64_t>(at.stride),
                                   .take_rows = take_rows.empty() ? nullptr : take_array.data(),
                                   .weight = weight_array.data(),
                                   .epsilon = 1e-5f,
                                   .element = element,
                                   .output = output.data() + at.offset,
                                   .output_stride = static_cast<std::int64_t>(at.stride),
                                   .rows = static_cast<int>(rows),
                                   .width = static_cast<int>(width)},
                                  cuda::StreamHandle{}),
      0);
  return Taken(output.Download(), width, at);
}

TEST_P(RowKernelsTest, RmsNormAgreesWithTheOracleAtAnyWidthAndAddress) {
  Numbers numbers(141);
  SCOPED_TRACE(numbers.Describe());
  for (const std::size_t width : kWidths) {
    SCOPED_TRACE(testing::Message() << "E " << width);
    std::vector<float> input = numbers.Normals(3 * width);
    for (std::size_t i = 0; i < width; ++i) {
      input[i] *= 1e-3f;  // a row where epsilon counts
      input[width + i] *= 1e3f;
    }
    const std::vector<float> weight = numbers.Normals(width);
    std::vector<double> expected;
    for (std::size_t t = 0; t < 3; ++t) {
      const reference::Row row =
          reference::RmsNorm(RowOf(input, t, width), ToDoubles(weight), static_cast<double>(1e-5f));
      expected.insert(expected.end(), row.begin(), row.end());
    }

    const std::vector<Placement> placements = Placements(width);
    const Bits aligned = RunRmsNorm(input, weight, {}, GetParam(), placements[0]);
    const Bits anywhere = RunRmsNorm(input, weight, {}, GetParam(), placements[1]);

    ExpectClose(WidenAll(aligned), expected, tolerance());
    EXPECT_EQ(aligned, anywhere);
  }
}

TEST_P(RowKernelsTest, RmsNormTakesTheRowsItIsToldAndZerosForPadding) {
  Numbers numbers(142);
  for (const std::size_t width : {20u, 576u}) {
    const std::vector<float> input = numbers.Normals(6 * width);
    const std::vector<float> weight = numbers.Normals(width);
    const Placement at = Placements(width)[0];
    const Bits all = RunRmsNorm(input, weight, {}, GetParam(), at);

    const Bits some = RunRmsNorm(input, weight, {5, -1, 2, -1}, GetParam(), at);

    const auto row = [&](const Bits& bits, std::size_t r) {
      return Bits(&bits[r * width], &bits[r * width] + width);
    };
    EXPECT_EQ(row(some, 0), row(all, 5));
    EXPECT_EQ(row(some, 1), Bits(width, 0));
    EXPECT_EQ(row(some, 2), row(all, 2));
    EXPECT_EQ(row(some, 3), Bits(width, 0));
  }
}

TEST_P(RowKernelsTest, ARowOfRmsNormDoesNotDependOnItsBatch) {
  Numbers numbers(143);
  constexpr std::size_t kWidth = 4133;
  constexpr std::size_t kRows = 5;
  const std::vector<float> input = numbers.Normals(kRows * kWidth);
  const std::vector<float> weight = numbers.Normals(kWidth);
  const Bits together = RunRmsNorm(input, weight, {}, GetParam(), {0, kWidth});
  for (std::size_t r = 0; r < kRows; ++r) {
    const std::vector<float> own(&input[r * kWidth], &input[r * kWidth] + kWidth);
    EXPECT_EQ(RunRmsNorm(own, weight, {}, GetParam(), {0, kWidth}),
              Bits(&together[r * kWidth], &together[r * kWidth] + kWidth))
        << r;
  }
}

TEST_P(RowKernelsTest, SiluMultiplyAgreesWithTheOracleAtAnyWidthAndAddress) {
  Numbers numbers(144);
  SCOPED_TRACE(numbers.Describe());
  for (const std::size_t width : kWidths) {
    SCOPED_TRACE(testing::Message() << "F " << width);
    std::vector<float> gate_up = numbers.Normals(3 * 2 * width);
    gate_up[0] = -100;  // exp overflows
    gate_up[2 * width] = 88;
    gate_up[4 * width] = 0;
    std::vector<double> expected;
    for (std::size_t t = 0; t < 3; ++t) {
      const reference::Row row = RowOf(gate_up, t, 2 * width);
      const auto up = row.begin() + static_cast<std::ptrdiff_t>(width);
      const reference::Row products = reference::SiluMultiply({row.begin(), up}, {up, row.end()});
      expected.insert(expected.end(), products.begin(), products.end());
    }

    std::vector<Bits> results;
    for (std::size_t p = 0; p < 2; ++p) {
      const Placement in = Placements(2 * width)[p];
      const Placement out = Placements(width)[p];
      const DeviceArray<float> input(Placed(gate_up, 2 * width, in));
      const DeviceArray<std::uint16_t> output(out.offset + 3 * out.stride);
      ASSERT_EQ(
          KernelsUnderTest().silu_multiply({.gate_up = input.data() + in.offset,
                                            .gate_up_stride = static_cast<std::int64_t>(in.stride),
                                            .element = GetParam(),
                                            .output = output.data() + out.offset,
                                            .output_stride = static_cast<std::int64_t>(out.stride),
                                            .rows = 3,
                                            .width = static_cast<int>(width)},
                                           cuda::StreamHandle{}),
          0);
      results.push_back(Taken(output.Download(), width, out));
    }

    ExpectClose(WidenAll(results[0]), expected, tolerance());
    EXPECT_EQ(results[0], results[1]);
  }
}

TEST_P(RowKernelsTest, EmbeddingsAreTheRowsOfTheTableAndPaddingIsZero) {
  Numbers numbers(145);
  constexpr std::size_t kVocabulary = 33;
  const std::vector<int> tokens = {0, 32, -1, 7, 7};
  for (const std::size_t width : kWidths) {
    SCOPED_TRACE(testing::Message() << "E " << width);
    const Bits table = RoundAll(numbers.Normals(kVocabulary * width));
    const DeviceArray<std::uint16_t> embedding(table);
    const DeviceArray<int> token_array(tokens);
    for (const Placement& at : Placements(width)) {
      const DeviceArray<float> hidden(at.offset + tokens.size() * at.stride);
      ASSERT_EQ(KernelsUnderTest().embed({.tokens = token_array.data(),
                                          .embedding = embedding.data(),
                                          .element = GetParam(),
                                          .hidden = hidden.data() + at.offset,
                                          .hidden_stride = static_cast<std::int64_t>(at.stride),
                                          .rows = static_cast<int>(tokens.size()),
                                          .width = static_cast<int>(width)},
                                         cuda::StreamHandle{}),
                0);
      const std::vector<float> rows = Taken(hidden.Download(), width, at);
      for (std::size_t t = 0; t < tokens.size(); ++t) {
        for (std::size_t i = 0; i < width; ++i) {
          const float expected =
              tokens[t] < 0 ? 0.0f : Widen(table[static_cast<std::size_t>(tokens[t]) * width + i]);
          ASSERT_EQ(rows[t * width + i], expected) << t << ", " << i;
        }
      }
    }
  }
}

// Cosines and sines as MakeRopeTable rounds them, [positions, D/2, 2].
std::vector<float> RopeTableOf(const std::vector<double>& frequencies, int positions) {
  std::vector<float> table;
  for (int p = 0; p < positions; ++p) {
    for (const double frequency : frequencies) {
      table.push_back(static_cast<float>(std::cos(p * frequency)));
      table.push_back(static_cast<float>(std::sin(p * frequency)));
    }
  }
  return table;
}

struct KvCase {
  std::size_t heads;
  std::size_t head_dim;
  Placement key;
  Placement value;
};

// Where element i of a key is in a layer of a block; its value is `heads` * 16 * head_dim further.
std::size_t KvIndex(const KvCase& c, std::size_t head, std::size_t offset, std::size_t i) {
  return (head * 16 + offset) * c.head_dim + i;
}

TEST_P(RowKernelsTest, KeysAreRotatedAndBothAreWrittenToTheirPlaces) {
  Numbers numbers(146);
  SCOPED_TRACE(numbers.Describe());
  constexpr int kPositions = 300;
  constexpr std::size_t kBlocks = 4;
  const std::vector<int> rotation = {0, 1, 299, 0, 77};
  const std::vector<int> block = {2, 2, 0, -1, 3};
  const std::vector<int> offset = {0, 1, 15, 0, 7};
  for (const KvCase& c : {KvCase{1, 64, {0, 64}, {0, 64}}, KvCase{3, 64, {0, 3 * 64}, {0, 3 * 64}},
                          KvCase{2, 128, {4, 800}, {8, 800}}, KvCase{3, 64, {1, 193}, {3, 195}},
                          KvCase{5, 16, {0, 80}, {0, 80}}, KvCase{2, 48, {0, 96}, {0, 96}},
                          KvCase{3, 20, {0, 60}, {0, 60}}, KvCase{1, 2, {0, 2}, {0, 2}}}) {
    SCOPED_TRACE(testing::Message() << "G " << c.heads << " D " << c.head_dim);
    const std::size_t width = c.heads * c.head_dim;
    const std::vector<float> key = numbers.Normals(rotation.size() * width);
    const std::vector<float> value = numbers.Normals(rotation.size() * width);
    std::vector<double> frequencies;
    for (std::size_t i = 0; i < c.head_dim / 2; ++i) {
      frequencies.push_back(
          std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(c.head_dim)));
    }
    // Two layers of a block; the second is the one that is written.
    const std::size_t layer = 2 * width * 16;
    const DeviceArray<std::uint16_t> pool(kBlocks * 2 * layer);
    const DeviceArray<float> key_array(Placed(key, width, c.key));
    const DeviceArray<float> value_array(Placed(value, width, c.value));
    const DeviceArray<float> rope(RopeTableOf(frequencies, kPositions));
    const DeviceArray<int> rotation_array(rotation);
    const DeviceArray<int> block_array(block);
    const DeviceArray<int> offset_array(offset);

    ASSERT_EQ(
        KernelsUnderTest().rotate_and_write_kv(
            {.key = key_array.data() + c.key.offset,
             .key_stride = static_cast<std::int64_t>(c.key.stride),
             .value = value_array.data() + c.value.offset,
             .value_stride = static_cast<std::int64_t>(c.value.stride),
             .rotation = rotation_array.data(),
             .block = block_array.data(),
             .offset = offset_array.data(),
             .rope = rope.data(),
             .pool = {.layer = reinterpret_cast<std::byte*>(pool.data() + layer),
                      .block_bytes = static_cast<std::int64_t>(2 * layer * sizeof(std::uint16_t)),
                      .kv_heads = static_cast<int>(c.heads)},
             .head_dim = static_cast<int>(c.head_dim),
             .element = GetParam(),
             .rows = static_cast<int>(rotation.size())},
            cuda::StreamHandle{}),
        0);

    Bits written = pool.Download();
    std::vector<double> keys;
    std::vector<double> expected_keys;
    for (std::size_t t = 0; t < rotation.size(); ++t) {
      if (block[t] < 0) {
        continue;
      }
      for (std::size_t g = 0; g < c.heads; ++g) {
        const reference::Row row = RowOf(key, t * c.heads + g, c.head_dim);
        const reference::Row rotated = reference::Rotate(row, rotation[t], frequencies);
        expected_keys.insert(expected_keys.end(), rotated.begin(), rotated.end());
        for (std::size_t i = 0; i < c.head_dim; ++i) {
          const std::size_t at = (static_cast<std::size_t>(block[t]) * 2 + 1) * layer +
                                 KvIndex(c, g, static_cast<std::size_t>(offset[t]), i);
          keys.push_back(static_cast<double>(Widen(written[at])));
          EXPECT_EQ(written[at + layer / 2], Round(value[(t * c.heads + g) * c.head_dim + i]));
          written[at] = kUntouched;
          written[at + layer / 2] = kUntouched;
        }
      }
    }
    Tolerance close = tolerance();
    // Two products of values up to 4 and table entries, each good to 2^-24, may cancel.
    close.absolute = 1e-6;
    ExpectClose(keys, expected_keys, close);
    EXPECT_EQ(written, Bits(written.size(), kUntouched)) << "something else was written";
  }
}

TEST_P(RowKernelsTest, NoRowsIsNothingToDo) {
  const cuda::KernelTable& kernels = KernelsUnderTest();
  EXPECT_EQ(kernels.embed({.element = GetParam(), .width = 8}, cuda::StreamHandle{}), 0);
  EXPECT_EQ(kernels.rms_norm({.element = GetParam(), .width = 8}, cuda::StreamHandle{}), 0);
  EXPECT_EQ(kernels.silu_multiply({.element = GetParam(), .width = 8}, cuda::StreamHandle{}), 0);
  EXPECT_EQ(
      kernels.rotate_and_write_kv({.pool = {.kv_heads = 1}, .head_dim = 64, .element = GetParam()},
                                  cuda::StreamHandle{}),
      0);
}

INSTANTIATE_TEST_SUITE_P(Elements,
                         RowKernelsTest,
                         ::testing::Values(Element::kBFloat16, Element::kHalf),
                         [](const auto& element) {
                           return element.param == Element::kHalf ? "fp16" : "bf16";
                         });

}  // namespace
}  // namespace baton
