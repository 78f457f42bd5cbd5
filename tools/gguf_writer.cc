#include "tools/gguf_writer.h"

#include <bit>

#include "common/byte_io.h"
#include "model/gguf_file.h"

namespace baton {
namespace {

constexpr std::uint32_t kVersion = 3;
constexpr std::size_t kAlignment = 32;

void PutText(std::string_view text, ByteWriter& writer) {
  writer.Put(static_cast<std::uint64_t>(text.size()));
  writer.PutBytes(text);
}

std::uint32_t Number(GgufType type) {
  return static_cast<std::uint32_t>(type);
}

std::size_t PaddingAfter(std::size_t bytes) {
  return (kAlignment - bytes % kAlignment) % kAlignment;
}

}  // namespace

void GgufWriter::PutRaw(std::string_view key, std::uint32_t type, std::string_view bytes) {
  ByteWriter writer;
  PutText(key, writer);
  writer.Put(type);
  writer.PutBytes(bytes);
  metadata_.append(writer.bytes());
  ++keys_;
}

void GgufWriter::PutCount(std::string_view key, std::uint32_t value) {
  ByteWriter writer;
  writer.Put(value);
  PutRaw(key, Number(GgufType::kUint32), writer.bytes());
}

void GgufWriter::PutFloat(std::string_view key, float value) {
  ByteWriter writer;
  writer.Put(std::bit_cast<std::uint32_t>(value));
  PutRaw(key, Number(GgufType::kFloat32), writer.bytes());
}

void GgufWriter::PutBool(std::string_view key, bool value) {
  PutRaw(key, Number(GgufType::kBool), std::string(1, value ? '\1' : '\0'));
}

void GgufWriter::PutString(std::string_view key, std::string_view value) {
  ByteWriter writer;
  PutText(value, writer);
  PutRaw(key, Number(GgufType::kString), writer.bytes());
}

void GgufWriter::PutStrings(std::string_view key, const std::vector<std::string>& values) {
  ByteWriter writer;
  writer.Put(Number(GgufType::kString));
  writer.Put(static_cast<std::uint64_t>(values.size()));
  for (const std::string& value : values) {
    PutText(value, writer);
  }
  PutRaw(key, Number(GgufType::kArray), writer.bytes());
}

void GgufWriter::PutIntegers(std::string_view key, const std::vector<std::int32_t>& values) {
  ByteWriter writer;
  writer.Put(Number(GgufType::kInt32));
  writer.Put(static_cast<std::uint64_t>(values.size()));
  for (const std::int32_t value : values) {
    writer.Put(value);
  }
  PutRaw(key, Number(GgufType::kArray), writer.bytes());
}

std::string GgufWriter::Compose() const {
  ByteWriter writer;
  writer.PutBytes("GGUF");
  writer.Put(kVersion);
  writer.Put(static_cast<std::uint64_t>(tensors_.size()));
  writer.Put(keys_);
  writer.PutBytes(metadata_);
  std::uint64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    PutText(tensor.name, writer);
    writer.Put(static_cast<std::uint32_t>(tensor.dimensions.size()));
    for (auto dimension = tensor.dimensions.rbegin(); dimension != tensor.dimensions.rend();
         ++dimension) {
      writer.Put(*dimension);
    }
    writer.Put(static_cast<std::uint32_t>(tensor.type));
    writer.Put(offset);
    offset += tensor.bytes.size() + PaddingAfter(tensor.bytes.size());
  }
  std::string file = std::move(writer).Take();
  file.append(PaddingAfter(file.size()), '\0');
  for (const Tensor& tensor : tensors_) {
    file.append(tensor.bytes);
    file.append(PaddingAfter(tensor.bytes.size()), '\0');
  }
  return file;
}

}  // namespace baton
