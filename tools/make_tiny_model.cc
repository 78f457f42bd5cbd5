// baton-make-tiny-model: writes a random llama model for tests and for trying Baton without a
// download.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/flags.h"
#include "tools/tiny_model.h"

namespace {

constexpr baton::ElementType kTypes[] = {
    baton::ElementType::kF32,  baton::ElementType::kF16,  baton::ElementType::kBF16,
    baton::ElementType::kQ4_0, baton::ElementType::kQ4_1, baton::ElementType::kQ5_0,
    baton::ElementType::kQ5_1, baton::ElementType::kQ8_0, baton::ElementType::kQ4_K,
    baton::ElementType::kQ5_K, baton::ElementType::kQ6_K,
};

std::vector<std::string> TypeNames() {
  std::vector<std::string> names;
  for (const baton::ElementType type : kTypes) {
    names.emplace_back(NameOf(type));
  }
  return names;
}

// An option of TinyModelOptions as the 64-bit integer that flags are parsed into.
struct IntegerFlag {
  const char* name;
  int baton::TinyModelOptions::*option;
  int low;
  int high;
  const char* help;
  std::int64_t value = 0;
};

}  // namespace

int main(int argc, char** argv) {
  using Options = baton::TinyModelOptions;
  Options options;
  std::string gguf;
  std::string hugging_face;
  std::string type = "F32";
  std::int64_t seed = 1;
  bool untied = false;
  IntegerFlag integers[] = {
      {"layers", &Options::layers, 1, 64, "transformer layers"},
      {"hidden", &Options::hidden, 2, 8192, "width of the embedding"},
      {"feed-forward", &Options::feed_forward, 2, 32768, "width inside the feed-forward part"},
      {"heads", &Options::heads, 1, 256, "query heads"},
      {"kv-heads", &Options::kv_heads, 1, 256, "key/value heads; divides --heads"},
      {"head-dim", &Options::head_dim, 2, 512, "width of a head, even"},
      {"vocabulary", &Options::vocabulary, 259, 1024, "token ids"},
      {"context-tokens", &Options::context_tokens, 1, 1 << 20, "longest sequence, in tokens"},
      {"shards", &Options::shards, 1, 99, "weight files of the Hugging Face directory"},
  };

  baton::Flags flags(
      "baton-make-tiny-model",
      "Writes a small llama model with random weights as a GGUF file, a Hugging Face "
      "directory, or both. The same flags always give the same bytes.");
  flags.Text("gguf", &gguf, "file to write");
  flags.Text("hugging-face", &hugging_face, "directory to write");
  flags.Choice("type", &type, TypeNames(),
               "element type of the matrices; safetensors hold BF16 or else F32");
  flags.Integer("seed", &seed, 0, INT64_MAX, "fixes the weights");
  flags.Text("name", &options.name, "the model's name in its files");
  flags.Switch("untied", &untied, "an output head of its own instead of the embedding");
  for (IntegerFlag& flag : integers) {
    flag.value = options.*flag.option;
    flags.Integer(flag.name, &flag.value, flag.low, flag.high, flag.help);
  }
  flags.Check([&] {
    return gguf.empty() && hugging_face.empty()
               ? absl::InvalidArgumentError("nothing to write: give --gguf, --hugging-face or both")
               : absl::OkStatus();
  });
  if (const auto exit_code = flags.Parse(argc, argv); exit_code.has_value()) {
    return *exit_code;
  }

  options.seed = static_cast<std::uint64_t>(seed);
  options.tied_head = !untied;
  for (const IntegerFlag& flag : integers) {
    options.*flag.option = static_cast<int>(flag.value);
  }
  for (const baton::ElementType candidate : kTypes) {
    if (NameOf(candidate) == type) {
      options.type = candidate;
    }
  }
  absl::Status status;
  if (!gguf.empty()) {
    status.Update(WriteTinyGguf(options, gguf));
  }
  if (!hugging_face.empty()) {
    status.Update(WriteTinyHuggingFace(options, hugging_face));
  }
  if (!status.ok()) {
    std::fprintf(stderr, "baton-make-tiny-model: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
