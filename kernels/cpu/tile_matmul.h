#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/constant_dispatch.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/tile_rows.h"

// Rows times one panel of packed weights, in register tiles of up to V::kMatMulRows rows by
// V::kMatMulVectors vectors.
//
// Every output is one chain over k from 0 to K in one accumulator, whatever tile it falls into:
// that makes a row's result independent of the rows beside it. Weights are read once per tile of
// rows, in order; few rows are bound by memory, many by the dot products. See vector_plain.h for
// why the namespace is unnamed.
namespace baton {
namespace {

// Weights are asked for this far ahead of use, across the end of the panel into the next one.
// Measured on two kinds of machine: 2 to 4 KiB is worth 25 % at 4 to 12 rows, where memory and
// arithmetic have to overlap, and still 15 % at 64, where panels come from the second cache.
constexpr int kPrefetchWords = 768;

// What all rows do with one panel.
struct MatMulPanel {
  const std::uint32_t* panel;  // [K/2, 32]
  const std::uint16_t* input;
  std::ptrdiff_t input_stride;
  int rows;
  int word_columns;
  float* output;  // the panel's first column
  std::ptrdiff_t output_stride;
  int columns;  // that exist, at most 32
  bool accumulate;
};

inline std::uint32_t LoadWord(const std::uint16_t* p) {
  std::uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

template <typename V, int kRows, int kVectors>
void MatMulTile(const MatMulPanel& args, int first_row, int first_column) {
  typename V::Float acc[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      acc[r][v] = V::Zero();
    }
  }

  // Row r is at base[r / 3] + (r % 3) * stride: four pointers and one index instead of twelve
  // pointers.
  const std::ptrdiff_t stride = args.input_stride;
  const std::uint16_t* base[4];
#pragma GCC unroll 4
  for (int b = 0; b < 4; ++b) {
    base[b] = args.input + (first_row + (3 * b < kRows ? 3 * b : 0)) * stride;
  }
  const std::uint32_t* weight = args.panel + first_column;
  for (int k = 0; k < args.word_columns; ++k) {
    // Few rows use a panel once, many find it in the second cache.
    constexpr int kLocality = kRows <= 4 ? 2 : 3;
    __builtin_prefetch(weight + kPrefetchWords, 0, kLocality);
    if constexpr (kVectors * V::kLanes > 16) {
      __builtin_prefetch(weight + kPrefetchWords + 16, 0, kLocality);
    }
    typename V::Pairs w[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      w[v] = V::Expand(V::LoadWords(weight + v * V::kLanes));
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename V::Pairs a = V::Expand(V::SetWord(LoadWord(base[r / 3] + (r % 3) * stride)));
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        acc[r][v] = V::Dot(acc[r][v], w[v], a);
      }
    }
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      base[b] += 2;
    }
    weight += kPanelColumns;
  }

#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const int column = first_column + v * V::kLanes;
      const int valid = args.columns - column;
      float* out = args.output + (first_row + r) * args.output_stride + column;
      if (valid >= V::kLanes) {
        V::Store(out, args.accumulate ? V::Add(V::Load(out), acc[r][v]) : acc[r][v]);
      } else if (valid > 0) {
        V::StoreFirst(
            out, args.accumulate ? V::Add(V::LoadFirst(out, valid), acc[r][v]) : acc[r][v], valid);
      }
    }
  }
}

template <typename V>
void MatMulPanelRows(const MatMulPanel& args) {
  constexpr int kTileColumns = V::kMatMulVectors * V::kLanes;
  for (int row = 0; row < args.rows;) {
    const int rows = BalancedTile(args.rows - row, V::kMatMulRows);
    WithConstant<V::kMatMulRows>(rows, [&](auto constant) {
      for (int column = 0; column < kPanelColumns; column += kTileColumns) {
        MatMulTile<V, decltype(constant)::kValue, V::kMatMulVectors>(args, row, column);
      }
    });
    row += rows;
  }
}

template <typename V>
void MatMulPanelRuns(const MatMulPanels& args) {
  for (int column = 0; column < args.columns; column += kPanelColumns) {
    const int rest = args.columns - column;
    MatMulPanelRows<V>({.panel = args.panels + std::ptrdiff_t{column} * args.word_columns,
                        .input = args.input,
                        .input_stride = args.input_stride,
                        .rows = args.rows,
                        .word_columns = args.word_columns,
                        .output = args.output + column,
                        .output_stride = args.output_stride,
                        .columns = rest < kPanelColumns ? rest : kPanelColumns,
                        .accumulate = args.accumulate});
  }
}

// Gates and what they multiply meet in the first cache, some rows at a time.
template <typename V>
void GatedMatMulPanelRuns(const GatedMatMulPanels& args) {
  constexpr int kRows = 4 * V::kMatMulRows;
  float gate[kRows][kPanelColumns];
  float up[kRows][kPanelColumns];
  for (int panel = 0; panel < args.panels; ++panel) {
    const std::ptrdiff_t offset = panel * std::ptrdiff_t{kPanelColumns} * args.word_columns;
    for (int row = 0; row < args.rows; row += kRows) {
      const int rows = args.rows - row < kRows ? args.rows - row : kRows;
      MatMulPanel product = {.panel = args.gate_panels + offset,
                             .input = args.input + row * args.input_stride,
                             .input_stride = args.input_stride,
                             .rows = rows,
                             .word_columns = args.word_columns,
                             .output = &gate[0][0],
                             .output_stride = kPanelColumns,
                             .columns = kPanelColumns,
                             .accumulate = false};
      MatMulPanelRows<V>(product);
      product.panel = args.up_panels + offset;
      product.output = &up[0][0];
      MatMulPanelRows<V>(product);
      for (int r = 0; r < rows; ++r) {
        SiluMultiplyRow<V>(gate[r], up[r], kPanelColumns,
                           args.output + (row + r) * args.output_stride + panel * kPanelColumns);
      }
    }
  }
}

}  // namespace
}  // namespace baton
