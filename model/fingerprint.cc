#include "model/fingerprint.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/byte_io.h"
#include "common/random_id.h"

namespace baton {
namespace {

// One line that changes whenever the file may have; nullopt when its state cannot be read, or when
// the file is so new that a second change could fall on the same time stamp.
std::optional<std::string> DescribeState(const std::string& path) {
  constexpr std::time_t kSettledSeconds = 2;
  struct stat info {};
  if (stat(path.c_str(), &info) != 0 ||
      std::time(nullptr) - info.st_ctim.tv_sec < kSettledSeconds) {
    return std::nullopt;
  }
  return absl::StrCat("size=", info.st_size, " inode=", info.st_ino,
                      " modified=", info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec,
                      " changed=", info.st_ctim.tv_sec, ".", info.st_ctim.tv_nsec);
}

std::optional<Digest> ReadEntry(const std::filesystem::path& entry, const std::string& state) {
  std::ifstream input(entry);
  std::string kept_state;
  std::string hex;
  if (!std::getline(input, kept_state) || !std::getline(input, hex) || kept_state != state) {
    return std::nullopt;
  }
  Digest digest;
  const bool is_hex = hex.size() == 2 * digest.size() &&
                      hex.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!is_hex) {
    return std::nullopt;
  }
  const std::string bytes = absl::HexStringToBytes(hex);
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  return digest;
}

// Written beside and renamed, so that a reader in another process never sees half an entry.
void WriteEntry(const std::filesystem::path& entry,
                const std::string& state,
                const Digest& digest) {
  std::error_code error;
  std::filesystem::create_directories(entry.parent_path(), error);
  const std::filesystem::path temporary =
      entry.string() + "." + RandomId<struct TemporaryTag>::Make().ToString();
  {
    std::ofstream output(temporary);
    output << state << '\n' << ToHex(digest) << '\n';
    output.close();
    if (!output) {
      std::filesystem::remove(temporary, error);
      return;
    }
  }
  std::filesystem::rename(temporary, entry, error);
  if (error) {
    std::filesystem::remove(temporary, error);
  }
}

void PutText(std::string_view text, ByteWriter& writer) {
  writer.Put(static_cast<std::uint32_t>(text.size()));
  writer.PutBytes(text);
}

}  // namespace

Digest FileDigest(const MappedFile& file, const std::string& cache_folder) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(file.path(), error);
  const auto state = error ? std::nullopt : DescribeState(file.path());
  if (cache_folder.empty() || !state.has_value()) {
    return Sha256Of(file.bytes());
  }
  const std::filesystem::path entry =
      std::filesystem::path(cache_folder) / "fingerprints" / ToHex(Sha256Of(path.string()));
  if (const auto kept = ReadEntry(entry, *state); kept.has_value()) {
    return *kept;
  }
  const Digest digest = Sha256Of(file.bytes());
  WriteEntry(entry, *state, digest);
  return digest;
}

Digest ModelFingerprint(std::vector<StoredTensor> tensors, std::span<const Digest> file_digests) {
  std::sort(tensors.begin(), tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
  ByteWriter writer;
  for (const StoredTensor& tensor : tensors) {
    PutText(tensor.name, writer);
    PutText(NameOf(tensor.type), writer);
    writer.Put(static_cast<std::uint32_t>(tensor.dimensions.size()));
    for (const std::uint64_t dimension : tensor.dimensions) {
      writer.Put(dimension);
    }
  }
  for (const Digest& digest : file_digests) {
    writer.PutBytes(AsBytes(digest));
  }
  return Sha256Of(writer.bytes());
}

}  // namespace baton
