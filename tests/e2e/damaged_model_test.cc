// What every server program does with a model it cannot use, with wrong usage, and with an address
// that is taken (faults.md F45).

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/cluster.h"
#include "tests/support/process.h"
#include "tests/support/tiny_checkpoint.h"
#include "tools/tiny_model.h"

namespace baton {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Overwrites the little-endian integer at `offset`.
template <typename Integer>
void Put(std::string& bytes, std::size_t offset, Integer value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
}

struct Damage {
  std::string name;
  std::function<void(std::string&)> apply;
  std::string place;  // what the message must name beside the file
};

// The header of GGUF v3: magic at 0, version at 4, number of tensors at 8, of metadata entries
// at 16.
std::vector<Damage> Damages() {
  return {{"empty", [](std::string& bytes) { bytes.clear(); }, "header at byte 0"},
          {"cut in the header", [](std::string& bytes) { bytes.resize(20); }, "header at byte 16"},
          {"cut in the metadata", [](std::string& bytes) { bytes.resize(2000); }, "at byte 1998"},
          {"cut in the last tensor", [](std::string& bytes) { bytes.resize(bytes.size() - 64); },
           "tensor '"},
          {"another magic", [](std::string& bytes) { bytes[0] = 'X'; }, "header at byte 0"},
          {"another version", [](std::string& bytes) { Put<std::uint32_t>(bytes, 4, 99); }, "99"},
          {"exabytes of tensors",
           [](std::string& bytes) { Put<std::uint64_t>(bytes, 8, 1ull << 60); }, "tensor"},
          {"exabytes of metadata", [](std::string& bytes) { Put<std::uint64_t>(bytes, 16, ~0ull); },
           "at byte"},
          {"a key that does not end",
           [](std::string& bytes) { Put<std::uint64_t>(bytes, 24, 1ull << 62); },
           "key 0 of 23 at byte 24"}};
}

// The parameter is the role of the program.
class DamagedModelTest : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<ChildProcess> Run(std::vector<std::string> flags) {
    auto process = ChildProcess::Start(ProgramPath("baton-" + GetParam()), flags);
    EXPECT_TRUE(process.ok()) << process.status();
    return process.ok() ? *std::move(process) : nullptr;
  }

  // Ends with `code`, says `pieces` on standard error and nothing on standard output.
  void ExpectRefusal(std::vector<std::string> flags,
                     int code,
                     const std::vector<std::string>& pieces) {
    const auto process = Run(std::move(flags));
    ASSERT_NE(process, nullptr);
    const std::optional<ProcessEnd> end = process->WaitForEnd(kPatience);
    ASSERT_TRUE(end.has_value());
    const std::string errors = process->ErrorOutput();
    EXPECT_EQ(end->code, code) << "signal " << end->signal.value_or(0) << "\n" << errors;
    EXPECT_EQ(process->ReadRest(), "");
    for (const std::string& piece : pieces) {
      EXPECT_NE(errors.find(piece), std::string::npos) << "no \"" << piece << "\" in:\n" << errors;
    }
  }

  std::vector<std::string> FlagsFor(const std::string& path) const {
    return {"--model", path, "--cache", folder_.path().string()};
  }

  const TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(,
                         DamagedModelTest,
                         testing::Values("decode", "prefill", "router"),
                         [](const auto& instance) { return instance.param; });

TEST_P(DamagedModelTest, DamagedFilesAreNamedWithThePlace) {
  const std::string good = ReadFile(TinyModel().path);
  for (const Damage& damage : Damages()) {
    SCOPED_TRACE(damage.name);
    std::string bytes = good;
    damage.apply(bytes);
    const std::string path = (folder_.path() / "damaged.gguf").string();
    WriteFile(path, bytes);

    ExpectRefusal(FlagsFor(path), kFailed,
                  {"baton-" + GetParam() + ":", "damaged.gguf", damage.place});
  }
}

TEST_P(DamagedModelTest, AMissingFileAndADamagedDirectory) {
  ExpectRefusal(FlagsFor((folder_.path() / "absent.gguf").string()), kFailed, {"absent.gguf"});
  ExpectRefusal(FlagsFor("no-such-name"), kFailed, {"no-such-name"});

  const std::string directory = (folder_.path() / "hf").string();
  ASSERT_TRUE(WriteTinyHuggingFace({}, directory).ok());
  const std::string weights = directory + "/model.safetensors";
  const std::string bytes = ReadFile(weights);
  ASSERT_FALSE(bytes.empty());
  WriteFile(weights, bytes.substr(0, bytes.size() / 2));
  ExpectRefusal(FlagsFor(directory), kFailed, {"model.safetensors"});
  WriteFile(directory + "/config.json", "{\"architectures\": [");
  ExpectRefusal(FlagsFor(directory), kFailed, {"config.json"});
}

TEST_P(DamagedModelTest, WrongUsageIsExitTwo) {
  const std::vector<std::vector<std::string>> wrong = {
      {"--no-such-flag"},        {"--listen"},
      {"--listen", "127.0.0.1"}, {"--listen", "127.0.0.1:99999"},
      {"--log-level", "loud"},   {"--zone", std::string(129, 'z')}};
  for (const std::vector<std::string>& flags : wrong) {
    SCOPED_TRACE(flags.back());
    ExpectRefusal(flags, kWrongUsage, {flags.front()});
  }
}

TEST_P(DamagedModelTest, ATakenPortIsSaidSo) {
  std::vector<std::string> flags = FlagsFor(TinyModel().path);
  if (GetParam() != "router") {
    flags.insert(flags.end(), {"--kv-pool-size", "1MiB"});
  }
  std::vector<std::string> other_flags = TinyModel().Flags();
  other_flags.insert(other_flags.end(), {"--kv-pool-size", "1MiB"});
  ServerProcess other("prefill", other_flags);
  ASSERT_EQ(other.Start(), absl::OkStatus());
  flags.insert(flags.end(), {"--listen", other.address()});

  ExpectRefusal(flags, kFailed, {"cannot listen on " + other.address(), "taken"});
}

}  // namespace
}  // namespace baton
