#include "model/fingerprint.h"

#include <gtest/gtest.h>

#include "tests/model/test_files.h"

namespace baton {
namespace {

// An old file: what has changed within the last seconds is not kept. Tests run in the root of the
// repository.
constexpr char kOldFile[] = "LICENSE";

std::filesystem::path OnlyEntry(const TemporaryDirectory& cache) {
  std::filesystem::path found;
  for (const auto& entry : std::filesystem::directory_iterator(cache / "fingerprints")) {
    EXPECT_TRUE(found.empty());
    found = entry.path();
  }
  return found;
}

TEST(FileDigest, IsKeptInTheCacheFolder) {
  const TemporaryDirectory cache;
  const auto file = MappedFile::Open(kOldFile);
  ASSERT_TRUE(file.ok()) << file.status();

  EXPECT_EQ(FileDigest(*file, cache.path()), Sha256Of(file->bytes()));

  // A made-up digest under the right state is believed: so the file is not read again.
  const std::filesystem::path entry = OnlyEntry(cache);
  const std::string kept = ReadFile(entry);
  WriteFile(entry, kept.substr(0, kept.find('\n') + 1) + std::string(64, 'a') + "\n");
  EXPECT_EQ(ToHex(FileDigest(*file, cache.path())), std::string(64, 'a'));
}

TEST(FileDigest, IgnoresAnEntryThatIsOldOrDamaged) {
  const TemporaryDirectory cache;
  const auto file = MappedFile::Open(kOldFile);
  ASSERT_TRUE(file.ok()) << file.status();
  const Digest right = FileDigest(*file, cache.path());
  const std::filesystem::path entry = OnlyEntry(cache);
  const std::string kept = ReadFile(entry);
  const std::string state = kept.substr(0, kept.find('\n') + 1);
  for (const std::string& bad :
       {"size=1" + kept, state, state + "abc\n", state + std::string(64, 'x'), std::string()}) {
    WriteFile(entry, bad);
    EXPECT_EQ(FileDigest(*file, cache.path()), right) << bad;
    EXPECT_EQ(ReadFile(entry), kept);
  }
}

TEST(FileDigest, WorksWithoutACacheFolder) {
  const auto file = MappedFile::Open(kOldFile);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(FileDigest(*file, ""), Sha256Of(file->bytes()));
  EXPECT_EQ(FileDigest(*file, "/dev/null/no/folder"), Sha256Of(file->bytes()));
}

TEST(FileDigest, OfAFileJustWrittenIsNotKept) {
  const TemporaryDirectory cache;
  WriteFile(cache / "new", "content");
  const auto file = MappedFile::Open(cache / "new");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(FileDigest(*file, cache.path()), Sha256Of("content"));
  EXPECT_FALSE(std::filesystem::exists(cache / "fingerprints"));
}

// Golden: workers and routers of different builds must agree. Computed with Python's hashlib from
// the layout that the header states.
TEST(ModelFingerprint, IsOverSortedTensorsAndDigests) {
  const StoredTensor b{.name = "b", .type = ElementType::kQ4_1, .dimensions = {2, 32}};
  const StoredTensor a{.name = "a", .type = ElementType::kF32, .dimensions = {5}};
  const Digest digest = Sha256Of("weights");
  const Digest fingerprint = ModelFingerprint({b, a}, {&digest, 1});
  EXPECT_EQ(fingerprint, ModelFingerprint({a, b}, {&digest, 1}));
  EXPECT_EQ(ToHex(fingerprint), "4c6355bf7e3d85fbc47f3d6048caf6543ba9479cac8961e2ce34dc0e87e9d47b");
}

}  // namespace
}  // namespace baton
