#include "tests/model/gguf_image.h"

#include <algorithm>
#include <bit>

#include "common/byte_io.h"
#include "common/check.h"
#include "model/gguf_file.h"

namespace baton {
namespace {

void PutString(const std::string& text, ByteWriter& writer) {
  writer.Put(static_cast<std::uint64_t>(text.size()));
  writer.PutBytes(text);
}

}  // namespace

GgufImage GgufImage::Read(const std::string& path) {
  const auto gguf = GgufFile::Open(path);
  BATON_CHECK(gguf.ok());
  GgufImage image;
  for (const auto& [name, value] : (*gguf)->metadata()) {
    ByteWriter bytes;
    if (value.type == GgufType::kArray) {
      bytes.Put(static_cast<std::uint32_t>(value.element_type));
      bytes.Put(value.count);
    }
    bytes.PutBytes(value.bytes);
    image.keys.push_back({name, static_cast<std::uint32_t>(value.type), bytes.bytes()});
  }
  image.key_count = image.keys.size();
  constexpr std::size_t kAlignment = 32;
  for (const StoredTensor& tensor : (*gguf)->tensors()) {
    image.tensors.push_back({tensor.name,
                             {tensor.dimensions.rbegin(), tensor.dimensions.rend()},
                             static_cast<std::uint32_t>(tensor.type),
                             image.data.size()});
    image.data.append(tensor.bytes);
    image.data.append((kAlignment - image.data.size() % kAlignment) % kAlignment, '\0');
  }
  image.tensor_count = image.tensors.size();
  return image;
}

std::string GgufImage::Compose() const {
  ByteWriter writer;
  writer.PutBytes(magic);
  writer.Put(version);
  writer.Put(tensor_count);
  writer.Put(key_count);
  for (const Key& key : keys) {
    PutString(key.name, writer);
    writer.Put(key.type);
    writer.PutBytes(key.bytes);
  }
  for (const Tensor& tensor : tensors) {
    PutString(tensor.name, writer);
    writer.Put(static_cast<std::uint32_t>(tensor.dimensions.size()));
    for (const std::uint64_t dimension : tensor.dimensions) {
      writer.Put(dimension);
    }
    writer.Put(tensor.type);
    writer.Put(tensor.offset);
  }
  constexpr std::size_t kAlignment = 32;
  std::string file = std::move(writer).Take();
  file.append((kAlignment - file.size() % kAlignment) % kAlignment, '\0');
  return file + data;
}

GgufImage::Key& GgufImage::FindKey(const std::string& name) {
  const auto found =
      std::find_if(keys.begin(), keys.end(), [&](const Key& key) { return key.name == name; });
  BATON_CHECK(found != keys.end());
  return *found;
}

GgufImage::Tensor& GgufImage::FindTensor(const std::string& name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const Tensor& tensor) { return tensor.name == name; });
  BATON_CHECK(found != tensors.end());
  return *found;
}

void GgufImage::Put(const std::string& name, std::uint32_t type, const std::string& bytes) {
  std::erase_if(keys, [&](const Key& key) { return key.name == name; });
  keys.push_back({name, type, bytes});
  key_count = keys.size();
}

void GgufImage::PutCount(const std::string& name, std::uint32_t value) {
  ByteWriter writer;
  writer.Put(value);
  Put(name, static_cast<std::uint32_t>(GgufType::kUint32), writer.bytes());
}

void GgufImage::PutFloat(const std::string& name, float value) {
  ByteWriter writer;
  writer.Put(std::bit_cast<std::uint32_t>(value));
  Put(name, static_cast<std::uint32_t>(GgufType::kFloat32), writer.bytes());
}

void GgufImage::PutText(const std::string& name, const std::string& text) {
  ByteWriter writer;
  PutString(text, writer);
  Put(name, static_cast<std::uint32_t>(GgufType::kString), writer.bytes());
}

void GgufImage::PutTexts(const std::string& name, const std::vector<std::string>& texts) {
  ByteWriter writer;
  writer.Put(static_cast<std::uint32_t>(GgufType::kString));
  writer.Put(static_cast<std::uint64_t>(texts.size()));
  for (const std::string& text : texts) {
    PutString(text, writer);
  }
  Put(name, static_cast<std::uint32_t>(GgufType::kArray), writer.bytes());
}

void GgufImage::PutIntegers(const std::string& name, const std::vector<std::int32_t>& values) {
  ByteWriter writer;
  writer.Put(static_cast<std::uint32_t>(GgufType::kInt32));
  writer.Put(static_cast<std::uint64_t>(values.size()));
  for (const std::int32_t value : values) {
    writer.Put(value);
  }
  Put(name, static_cast<std::uint32_t>(GgufType::kArray), writer.bytes());
}

void GgufImage::Remove(const std::string& name) {
  std::erase_if(keys, [&](const Key& key) { return key.name == name; });
  key_count = keys.size();
}

void GgufImage::RemoveTensor(const std::string& name) {
  std::erase_if(tensors, [&](const Tensor& tensor) { return tensor.name == name; });
  tensor_count = tensors.size();
}

}  // namespace baton
