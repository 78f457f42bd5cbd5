#pragma once

#include <span>
#include <string>
#include <vector>

#include "bench/work_model.h"

namespace baton {

enum class FigureKind { kPrefill, kDecode };

// One thing that is measured, of our engine and of the peer alike.
struct Figure {
  std::string name;  // "decode_2048_2t"
  FigureKind kind = FigureKind::kPrefill;
  int prompt_tokens = 0;  // prefill
  DecodeShape decode;
  int threads = 1;

  // What its tokens per second are counted in.
  double tokens() const {
    return kind == FigureKind::kPrefill ? prompt_tokens : double{1} * decode.streams * decode.steps;
  }
  Work WorkFor(const ModelConfig& config) const {
    return kind == FigureKind::kPrefill ? PrefillWork(config, prompt_tokens)
                                        : DecodeWork(config, decode);
  }
  // Longest sequence, prompt and completion together.
  int sequence_tokens() const {
    return kind == FigureKind::kPrefill ? prompt_tokens + 1 : decode.depth + decode.steps + 1;
  }
};

// Time that a figure took.
struct Timing {
  double wall_seconds = 0;
  double cpu_seconds = 0;
};

// prefill_512, prefill_2048, decode_0, decode_2048, batch_8 and batch_16, for each number of
// threads; the names for more than one end in "_2t".
inline std::vector<Figure> MakeFigures(std::span<const int> threads) {
  const auto prefill = [](int tokens) {
    return Figure{.name = "prefill_" + std::to_string(tokens),
                  .kind = FigureKind::kPrefill,
                  .prompt_tokens = tokens};
  };
  const auto decode = [](std::string name, const DecodeShape& shape) {
    return Figure{.name = std::move(name), .kind = FigureKind::kDecode, .decode = shape};
  };
  std::vector<Figure> figures;
  for (const int count : threads) {
    for (Figure figure :
         {prefill(512), prefill(2048), decode("decode_0", {.streams = 1, .depth = 0, .steps = 64}),
          decode("decode_2048", {.streams = 1, .depth = 2048, .steps = 64}),
          decode("batch_8", {.streams = 8, .depth = 128, .steps = 32}),
          decode("batch_16", {.streams = 16, .depth = 128, .steps = 32})}) {
      figure.threads = count;
      if (count > 1) {
        figure.name += "_" + std::to_string(count) + "t";
      }
      figures.push_back(std::move(figure));
    }
  }
  return figures;
}

}  // namespace baton
