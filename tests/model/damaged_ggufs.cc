#include <cmath>
#include <functional>
#include <limits>

#include "common/byte_io.h"
#include "common/check.h"
#include "tests/model/damaged_models.h"
#include "tests/model/gguf_image.h"
#include "tests/model/test_files.h"
#include "tools/tiny_model.h"

namespace baton {
namespace {

struct Case {
  const char* name;
  const char* item;  // what the error names
  std::function<void(GgufImage&)> damage;
};

template <typename T>
std::string Bytes(T value) {
  ByteWriter writer;
  writer.Put(value);
  return writer.bytes();
}

constexpr std::uint32_t kUint8 = 0;
constexpr std::uint32_t kInt32 = 5;
constexpr std::uint32_t kBool = 7;
constexpr std::uint32_t kString = 8;
constexpr std::uint32_t kArray = 9;
constexpr std::uint64_t kHuge = std::uint64_t{1} << 60;

// An array of arrays, `depth` of them, the innermost of one byte.
std::string NestedArray(int depth) {
  std::string bytes;
  for (int i = 1; i < depth; ++i) {
    bytes += Bytes(kArray) + Bytes(std::uint64_t{1});
  }
  return bytes + Bytes(kUint8) + Bytes(std::uint64_t{1}) + std::string(1, '\0');
}

std::vector<Case> HeaderCases() {
  return {
      {"magic", "header", [](GgufImage& image) { image.magic = "GGML"; }},
      {"version-0", "version", [](GgufImage& image) { image.version = 0; }},
      {"version-1", "version", [](GgufImage& image) { image.version = 1; }},
      {"version-4", "version", [](GgufImage& image) { image.version = 4; }},
      {"big-endian", "version", [](GgufImage& image) { image.version = 0x03000000; }},
      {"no-tensors", "header",
       [](GgufImage& image) {
         image.tensors.clear();
         image.tensor_count = 0;
       }},
      {"tensor-count-one-more", "tensor 11 of 12", [](GgufImage& image) { ++image.tensor_count; }},
      {"tensor-count-huge", "tensor 11 of", [](GgufImage& image) { image.tensor_count = kHuge; }},
      {"tensor-count-one-less", "tensor", [](GgufImage& image) { --image.tensor_count; }},
      {"key-count-one-more", "key", [](GgufImage& image) { ++image.key_count; }},
      {"key-count-huge", "key", [](GgufImage& image) { image.key_count = ~std::uint64_t{0}; }},
      {"key-count-one-less", "tensor 'tokenizer.ggml", [](GgufImage& image) { --image.key_count; }},
  };
}

std::vector<Case> KeyCases() {
  return {
      {"key-empty", "key", [](GgufImage& image) { image.Put("", kUint8, "x"); }},
      {"key-not-utf8", "key", [](GgufImage& image) { image.Put("a\xff", kUint8, "x"); }},
      {"key-too-long", "key",
       [](GgufImage& image) { image.Put(std::string(65536, 'k'), kUint8, "x"); }},
      {"key-twice", "key 'general.name'",
       [](GgufImage& image) {
         image.keys.push_back(image.FindKey("general.name"));
         ++image.key_count;
       }},
      {"value-type-13", "key 'x'", [](GgufImage& image) { image.Put("x", 13, "x"); }},
      {"value-type-huge", "key 'x'", [](GgufImage& image) { image.Put("x", ~0U, "x"); }},
      {"bool-of-2", "key 'x'", [](GgufImage& image) { image.Put("x", kBool, "\2"); }},
      {"string-longer-than-file", "key 'x'",
       [](GgufImage& image) { image.Put("x", kString, Bytes(kHuge)); }},
      {"string-length-overflows", "key 'x'",
       [](GgufImage& image) { image.Put("x", kString, Bytes(~std::uint64_t{0})); }},
      {"array-of-type-13", "key 'x'",
       [](GgufImage& image) { image.Put("x", kArray, Bytes(13U) + Bytes(std::uint64_t{1})); }},
      {"array-longer-than-file", "key 'x'",
       [](GgufImage& image) { image.Put("x", kArray, Bytes(kInt32) + Bytes(kHuge)); }},
      {"array-size-overflows", "key 'x'",
       [](GgufImage& image) { image.Put("x", kArray, Bytes(kInt32) + Bytes(~std::uint64_t{0})); }},
      {"array-of-strings-endless", "key 'x'",
       [](GgufImage& image) { image.Put("x", kArray, Bytes(kString) + Bytes(kHuge)); }},
      {"array-nested-deeply", "key 'x'",
       [](GgufImage& image) { image.Put("x", kArray, NestedArray(5)); }},
      {"array-nested-very-deeply", "key 'x'",
       [](GgufImage& image) { image.Put("x", kArray, NestedArray(100000)); }},
      {"alignment-0", "key 'general.alignment'",
       [](GgufImage& image) { image.PutCount("general.alignment", 0); }},
      {"alignment-12", "key 'general.alignment'",
       [](GgufImage& image) { image.PutCount("general.alignment", 12); }},
      {"alignment-beyond-the-file", "padding",
       [](GgufImage& image) {
         image.PutCount("general.alignment", 1U << 30);
         for (GgufImage::Tensor& tensor : image.tensors) {
           tensor.offset = 0;
         }
       }},
      {"alignment-text", "key 'general.alignment'",
       [](GgufImage& image) { image.PutText("general.alignment", "32"); }},
  };
}

std::vector<Case> ConfigCases() {
  const auto count = [](const char* key, std::uint32_t value) {
    return [key, value](GgufImage& image) { image.PutCount(key, value); };
  };
  return {
      {"no-architecture", "key 'general.architecture'",
       [](GgufImage& image) { image.Remove("general.architecture"); }},
      {"architecture-mamba", "key 'general.architecture'",
       [](GgufImage& image) { image.PutText("general.architecture", "mamba"); }},
      {"architecture-number", "key 'general.architecture'", count("general.architecture", 1)},
      {"no-layers", "key 'llama.block_count'",
       [](GgufImage& image) { image.Remove("llama.block_count"); }},
      {"layers-0", "key 'llama.block_count'", count("llama.block_count", 0)},
      {"layers-2", "tensor 'blk.1.attn_norm.weight'", count("llama.block_count", 2)},
      {"layers-huge", "key 'llama.block_count'", count("llama.block_count", 0x7fffffff)},
      {"layers-above-int", "key 'llama.block_count'", count("llama.block_count", 0x80000000)},
      {"layers-negative", "key 'llama.block_count'",
       [](GgufImage& image) { image.Put("llama.block_count", kInt32, Bytes(std::int32_t{-1})); }},
      {"layers-text", "key 'llama.block_count'",
       [](GgufImage& image) { image.PutText("llama.block_count", "1"); }},
      {"context-0", "key 'llama.context_length'", count("llama.context_length", 0)},
      {"embedding-wrong", "tensor 'token_embd.weight'", count("llama.embedding_length", 64)},
      {"feed-forward-wrong", "tensor 'blk.0.ffn_gate.weight'",
       count("llama.feed_forward_length", 48)},
      {"heads-0", "key 'llama.attention.head_count'", count("llama.attention.head_count", 0)},
      {"heads-per-layer", "key 'llama.attention.head_count'",
       [](GgufImage& image) { image.PutIntegers("llama.attention.head_count", {2}); }},
      {"kv-heads-0", "key 'llama.attention.head_count_kv'",
       count("llama.attention.head_count_kv", 0)},
      {"kv-heads-do-not-divide", "key 'llama.attention.head_count_kv'",
       count("llama.attention.head_count_kv", 3)},
      {"kv-heads-wrong", "tensor 'blk.0.attn_k.weight'", count("llama.attention.head_count_kv", 2)},
      {"head-odd", "key 'llama.attention.key_length'",
       [](GgufImage& image) {
         for (const char* key : {"llama.attention.key_length", "llama.attention.value_length",
                                 "llama.rope.dimension_count"}) {
           image.PutCount(key, 15);
         }
       }},
      {"partial-rotation", "key 'llama.rope.dimension_count'",
       count("llama.rope.dimension_count", 8)},
      {"value-heads-differ", "key 'llama.attention.value_length'",
       count("llama.attention.value_length", 8)},
      {"epsilon-0", "key 'llama.attention.layer_norm_rms_epsilon'",
       [](GgufImage& image) { image.PutFloat("llama.attention.layer_norm_rms_epsilon", 0); }},
      {"epsilon-nan", "key 'llama.attention.layer_norm_rms_epsilon'",
       [](GgufImage& image) { image.PutFloat("llama.attention.layer_norm_rms_epsilon", NAN); }},
      {"epsilon-integer", "key 'llama.attention.layer_norm_rms_epsilon'",
       count("llama.attention.layer_norm_rms_epsilon", 1)},
      {"rope-base-negative", "key 'llama.rope.freq_base'",
       [](GgufImage& image) { image.PutFloat("llama.rope.freq_base", -1); }},
      {"rope-base-infinite", "key 'llama.rope.freq_base'",
       [](GgufImage& image) { image.PutFloat("llama.rope.freq_base", INFINITY); }},
      {"rope-scaling", "key 'llama.rope.scaling.type'",
       [](GgufImage& image) { image.PutText("llama.rope.scaling.type", "yarn"); }},
      {"rope-factor", "key 'llama.rope.scaling.factor'",
       [](GgufImage& image) { image.PutFloat("llama.rope.scaling.factor", 4); }},
      {"experts", "key 'llama.expert_count'", count("llama.expert_count", 8)},
      {"unknown-setting", "key 'llama.logit_scale'",
       [](GgufImage& image) { image.PutFloat("llama.logit_scale", 2); }},
      {"vocabulary-differs", "key 'llama.vocab_size'", count("llama.vocab_size", 299)},
  };
}

std::vector<Case> TokenizerCases() {
  const auto text = [](const char* key, const char* value) {
    return [key, value](GgufImage& image) { image.PutText(key, value); };
  };
  const auto merges = [](std::vector<std::string> list) {
    return [list = std::move(list)](GgufImage& image) {
      image.PutTexts("tokenizer.ggml.merges", list);
    };
  };
  return {
      {"tokenizer-model", "key 'tokenizer.ggml.model'", text("tokenizer.ggml.model", "llama")},
      {"pre-tokenizer", "key 'tokenizer.ggml.pre'", text("tokenizer.ggml.pre", "llama-bpe")},
      {"no-pre-tokenizer", "key 'tokenizer.ggml.pre'",
       [](GgufImage& image) { image.Remove("tokenizer.ggml.pre"); }},
      {"no-tokens", "key 'tokenizer.ggml.tokens'",
       [](GgufImage& image) { image.Remove("tokenizer.ggml.tokens"); }},
      {"tokens-empty", "key 'tokenizer.ggml",
       [](GgufImage& image) {
         image.PutTexts("tokenizer.ggml.tokens", {});
         image.PutIntegers("tokenizer.ggml.token_type", {});
       }},
      {"tokens-numbers", "key 'tokenizer.ggml.tokens'",
       [](GgufImage& image) {
         image.PutIntegers("tokenizer.ggml.tokens", {1, 2});
       }},
      {"token-types-short", "key 'tokenizer.ggml.token_type'",
       [](GgufImage& image) {
         image.PutIntegers("tokenizer.ggml.token_type", {1, 1});
       }},
      {"token-type-99", "key 'tokenizer.ggml.token_type'",
       [](GgufImage& image) {
         image.PutIntegers("tokenizer.ggml.token_type", std::vector<std::int32_t>(300, 99));
       }},
      {"token-type-byte", "key 'tokenizer.ggml.token_type'",
       [](GgufImage& image) {
         image.PutIntegers("tokenizer.ggml.token_type", std::vector<std::int32_t>(300, 6));
       }},
      {"tokens-all-alike", "key 'tokenizer.ggml.tokens'",
       [](GgufImage& image) {
         image.PutTexts("tokenizer.ggml.tokens", std::vector<std::string>(300, "a"));
       }},
      {"merge-without-space", "key 'tokenizer.ggml.merges'", merges({"ab"})},
      {"merge-of-three", "key 'tokenizer.ggml.merges'", merges({"a b c"})},
      {"merge-unknown", "key 'tokenizer.ggml.tokens'", merges({"zz zz"})},
      {"merge-twice", "key 'tokenizer.ggml.tokens'", merges({"e t", "e t"})},
      {"bos-outside", "key 'tokenizer.ggml.bos_token_id'",
       [](GgufImage& image) { image.PutCount("tokenizer.ggml.bos_token_id", 300); }},
      {"no-eos", "key 'tokenizer.ggml.eos_token_id'",
       [](GgufImage& image) { image.Remove("tokenizer.ggml.eos_token_id"); }},
      {"padding-outside", "key 'tokenizer.ggml.padding_token_id'",
       [](GgufImage& image) { image.PutCount("tokenizer.ggml.padding_token_id", 0x7fffffff); }},
      {"adds-bos", "key 'tokenizer.ggml.add_bos_token'",
       [](GgufImage& image) { image.Put("tokenizer.ggml.add_bos_token", kBool, "\1"); }},
  };
}

std::vector<Case> TensorCases() {
  static constexpr char kQuery[] = "blk.0.attn_q.weight";
  static constexpr char kQueryItem[] = "tensor 'blk.0.attn_q.weight'";
  const auto dimensions = [](std::vector<std::uint64_t> list) {
    return
        [list = std::move(list)](GgufImage& image) { image.FindTensor(kQuery).dimensions = list; };
  };
  const auto type = [](std::uint32_t number) {
    return [number](GgufImage& image) { image.FindTensor(kQuery).type = number; };
  };
  const auto offset = [](std::uint64_t value) {
    return [value](GgufImage& image) { image.FindTensor(kQuery).offset = value; };
  };
  const auto name = [](std::string value) {
    return [value = std::move(value)](GgufImage& image) { image.FindTensor(kQuery).name = value; };
  };
  return {
      {"tensor-name-empty", "tensor 2 of", name("")},
      {"tensor-name-too-long", "tensor 2 of", name(std::string(65, 'n'))},
      {"tensor-name-not-utf8", "tensor 2 of", name("blk\xc3")},
      {"tensor-name-unknown", "tensor 'blk.0.attn_q.bias'", name("blk.0.attn_q.bias")},
      {"tensor-name-spelt-otherwise", "tensor 'blk.00.attn_q.weight'",
       name("blk.00.attn_q.weight")},
      {"tensor-of-no-layer", "tensor 'blk.1.attn_q.weight'", name("blk.1.attn_q.weight")},
      {"tensor-of-layer-overflowing", "tensor 'blk.4294967296.attn_q.weight'",
       name("blk.4294967296.attn_q.weight")},
      {"tensor-twice", "tensor 'blk.0.attn_k.weight'", name("blk.0.attn_k.weight")},
      {"tensor-missing", kQueryItem, [](GgufImage& image) { image.RemoveTensor(kQuery); }},
      {"rank-0", kQueryItem, dimensions({})},
      {"rank-5", kQueryItem, dimensions({32, 32, 1, 1, 1})},
      {"rank-huge", "tensor 'x'",
       [](GgufImage& image) {
         image.tensors.push_back({.name = "x", .dimensions = std::vector<std::uint64_t>(300, 1)});
         ++image.tensor_count;
       }},
      {"dimension-0", kQueryItem, dimensions({32, 0})},
      {"dimension-wrong", kQueryItem, dimensions({32, 16})},
      {"dimensions-swapped-ranks", kQueryItem, dimensions({1024})},
      {"shape-of-exabytes", kQueryItem,
       dimensions({std::uint64_t{1} << 30, std::uint64_t{1} << 30})},
      {"shape-overflows", kQueryItem, dimensions({std::uint64_t{1} << 33, std::uint64_t{1} << 33})},
      {"shape-overflows-to-small", kQueryItem, dimensions({std::uint64_t{1} << 63, 2, 1024})},
      {"bytes-overflow", kQueryItem, dimensions({std::uint64_t{1} << 31, std::uint64_t{1} << 31})},
      {"type-99", kQueryItem, type(99)},
      {"type-of-old-times", kQueryItem, type(4)},
      {"rows-not-whole-blocks", kQueryItem, type(14)},
      {"offset-unaligned", kQueryItem, offset(16)},
      {"offset-beyond-the-file", kQueryItem, offset(std::uint64_t{1} << 32)},
      {"offset-overflows", kQueryItem, offset(~std::uint64_t{31})},
      {"offset-of-another", "overlaps", offset(0)},
      {"offset-overlapping", "overlaps",
       [](GgufImage& image) { image.FindTensor(kQuery).offset -= 32; }},
      {"data-cut-off", "tensor",
       [](GgufImage& image) { image.data.resize(image.data.size() / 2); }},
      {"data-missing", "tensor", [](GgufImage& image) { image.data.clear(); }},
  };
}

}  // namespace

std::vector<DamagedModel> WriteDamagedGgufs(const std::string& directory) {
  const TinyModelOptions options = {.layers = 1,
                                    .hidden = 32,
                                    .feed_forward = 32,
                                    .heads = 2,
                                    .kv_heads = 1,
                                    .head_dim = 16,
                                    .vocabulary = 300};
  const std::string sound = directory + "/sound.gguf";
  BATON_CHECK(WriteTinyGguf(options, sound).ok());
  const std::string file = ReadFile(sound);
  std::vector<DamagedModel> models;
  const auto add = [&](const std::string& name, const std::string& item, const std::string& bytes) {
    const std::string path = directory + "/gguf-" + name + ".gguf";
    WriteFile(path, bytes);
    models.push_back({"gguf-" + name, path, path, item});
  };
  for (const auto& cases :
       {HeaderCases(), KeyCases(), ConfigCases(), TokenizerCases(), TensorCases()}) {
    for (const Case& damaged : cases) {
      GgufImage image = GgufImage::Read(sound);
      damaged.damage(image);
      add(damaged.name, damaged.item, image.Compose());
    }
  }
  constexpr int kCuts = 40;
  for (int i = 0; i < kCuts; ++i) {
    const std::size_t length = file.size() * static_cast<std::size_t>(i) / kCuts;
    add("truncated-at-" + std::to_string(length), " at byte ", file.substr(0, length));
  }
  for (const std::size_t length :
       {std::size_t{3}, std::size_t{4}, std::size_t{7}, std::size_t{23}, std::size_t{24},
        std::size_t{31}, std::size_t{40}, file.size() - 1}) {
    add("truncated-at-" + std::to_string(length), " at byte ", file.substr(0, length));
  }
  return models;
}

}  // namespace baton
