#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace baton {

// A GGUF file taken apart, so that a test can put it together with one thing wrong. Every count and
// offset is written as it stands here, whether it is true or not.
struct GgufImage {
  struct Key {
    std::string name;
    std::uint32_t type = 0;
    std::string bytes;  // all that follows the type
  };
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> dimensions;  // fastest first, as in the file
    std::uint32_t type = 0;
    std::uint64_t offset = 0;
  };

  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::uint64_t tensor_count = 0;
  std::uint64_t key_count = 0;
  std::vector<Key> keys;
  std::vector<Tensor> tensors;
  std::string data;

  // REQUIRES: a file that opens, with the default alignment.
  static GgufImage Read(const std::string& path);

  std::string Compose() const;

  // References to what a test changes. REQUIRES: it is there.
  Key& FindKey(const std::string& name);
  Tensor& FindTensor(const std::string& name);

  // Adds or replaces a key; the count follows.
  void Put(const std::string& name, std::uint32_t type, const std::string& bytes);
  void PutCount(const std::string& name, std::uint32_t value);
  void PutFloat(const std::string& name, float value);
  void PutText(const std::string& name, const std::string& text);
  void PutTexts(const std::string& name, const std::vector<std::string>& texts);
  void PutIntegers(const std::string& name, const std::vector<std::int32_t>& values);
  void Remove(const std::string& name);
  void RemoveTensor(const std::string& name);
};

}  // namespace baton
