#include "common/flags.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

namespace baton {
namespace {

struct Options {
  std::string listen = "127.0.0.1:0";
  std::vector<std::string> decode;
  std::int64_t threads = 1;
  std::size_t pool = std::size_t{2} << 30;
  bool fast = false;
  std::string device = "auto";
  double share = 0.5;
};

class FlagsTest : public testing::Test {
 protected:
  std::optional<int> Parse(std::vector<const char*> words) {
    Flags flags("program", "A program.");
    flags.Text("listen", &options_.listen, "address");
    flags.TextList("decode", &options_.decode, "workers");
    flags.Integer("threads", &options_.threads, 1, 64, "threads");
    flags.Bytes("kv-pool-size", &options_.pool, "pool");
    flags.Switch("fast", &options_.fast, "fast");
    flags.Number("share", &options_.share, 0, 1, "share");
    flags.Choice("device", &options_.device, {"auto", "cpu"}, "device");
    flags.Check([this] { return CheckHostPort(options_.listen); });
    words.insert(words.begin(), "program");
    testing::internal::CaptureStderr();
    testing::internal::CaptureStdout();
    const std::optional<int> code = flags.Parse(static_cast<int>(words.size()), words.data());
    errors_ = testing::internal::GetCapturedStderr();
    output_ = testing::internal::GetCapturedStdout();
    return code;
  }

  void TearDown() override {
    unsetenv("BATON_THREADS");
    unsetenv("BATON_KV_POOL_SIZE");
    unsetenv("BATON_FAST");
  }

  std::string WriteConfig(const std::string& text) {
    const std::string path = testing::TempDir() + "flags_test.toml";
    std::ofstream(path) << text;
    return path;
  }

  Options options_;
  std::string errors_;
  std::string output_;
};

TEST_F(FlagsTest, ANumberIsHeldToItsRange) {
  EXPECT_EQ(Parse({"--share", "0.25"}), std::nullopt);
  EXPECT_EQ(options_.share, 0.25);
  for (const char* word : {"nan", "inf", "-0.1", "1.01", "half", ""}) {
    EXPECT_EQ(Parse({"--share", word}), 2) << word;
    EXPECT_NE(errors_.find("--share"), std::string::npos) << errors_;
  }
  EXPECT_EQ(options_.share, 0.25);
}

TEST_F(FlagsTest, DefaultsStandWhenNothingIsGiven) {
  EXPECT_EQ(Parse({}), std::nullopt);
  EXPECT_EQ(options_.listen, "127.0.0.1:0");
  EXPECT_EQ(options_.threads, 1);
}

TEST_F(FlagsTest, FlagBeatsEnvironmentBeatsFile) {
  const std::string config =
      WriteConfig("threads = 2\nlisten = \"127.0.0.1:7\"\nkv-pool-size = \"1GiB\"\n");
  setenv("BATON_THREADS", "3", 1);
  setenv("BATON_KV_POOL_SIZE", "512MiB", 1);

  EXPECT_EQ(Parse({"--config", config.c_str(), "--threads", "4"}), std::nullopt) << errors_;

  EXPECT_EQ(options_.threads, 4);
  EXPECT_EQ(options_.pool, std::size_t{512} << 20);
  EXPECT_EQ(options_.listen, "127.0.0.1:7");
}

TEST_F(FlagsTest, RepeatedFlagsAndSwitches) {
  setenv("BATON_FAST", "true", 1);
  EXPECT_EQ(Parse({"--decode", "a:1", "--decode", "b:2"}), std::nullopt) << errors_;
  EXPECT_EQ(options_.decode, (std::vector<std::string>{"a:1", "b:2"}));
  EXPECT_TRUE(options_.fast);
}

TEST_F(FlagsTest, ReportsAllProblemsAtOnceAndExitsWithTwo) {
  EXPECT_EQ(Parse({"--threads", "0", "--kv-pool-size", "lots", "--device", "tpu"}), 2);
  EXPECT_NE(errors_.find("--threads: \"0\" is not an integer from 1 to 64"), std::string::npos)
      << errors_;
  EXPECT_NE(errors_.find("--kv-pool-size: \"lots\""), std::string::npos) << errors_;
  EXPECT_NE(errors_.find("--device: \"tpu\" is not one of auto|cpu"), std::string::npos) << errors_;
}

TEST_F(FlagsTest, RefusesUnknownFlagsFilesAndKeys) {
  EXPECT_EQ(Parse({"--thread", "1"}), 2);
  EXPECT_NE(errors_.find("--thread"), std::string::npos) << errors_;
  EXPECT_EQ(Parse({"--config", "missing.toml"}), 2);
  EXPECT_NE(errors_.find("missing.toml"), std::string::npos) << errors_;
  const std::string config = WriteConfig("threats = 2\n");
  EXPECT_EQ(Parse({"--config", config.c_str()}), 2);
  EXPECT_NE(errors_.find("threats"), std::string::npos) << errors_;
}

TEST_F(FlagsTest, ChecksOverSeveralFlagsRun) {
  EXPECT_EQ(Parse({"--listen", "nowhere"}), 2);
  EXPECT_NE(errors_.find("\"nowhere\" is not host:port"), std::string::npos) << errors_;
}

TEST_F(FlagsTest, PrintsValuesWithTheirOriginAndChecks) {
  setenv("BATON_THREADS", "3", 1);
  EXPECT_EQ(Parse({"--print-config", "--device", "cpu"}), 0);
  EXPECT_NE(output_.find("threads = 3  # environment BATON_THREADS"), std::string::npos) << output_;
  EXPECT_NE(output_.find("device = \"cpu\"  # command line"), std::string::npos) << output_;
  EXPECT_NE(output_.find("listen = \"127.0.0.1:0\"  # default"), std::string::npos) << output_;
  EXPECT_EQ(Parse({"--check-config"}), 0);
  EXPECT_EQ(Parse({"--check-config", "--threads", "x"}), 2);
  EXPECT_EQ(Parse({"--help"}), 0);
  EXPECT_NE(output_.find("--kv-pool-size"), std::string::npos) << output_;
  EXPECT_EQ(Parse({"--version"}), 0);
}

// What --print-config writes is itself a config file.
TEST_F(FlagsTest, PrintedConfigCanBeReadBack) {
  EXPECT_EQ(
      Parse({"--print-config", "--threads", "5", "--decode", "a:1", "--decode", "b:2", "--fast"}),
      0);
  const std::string config = WriteConfig(output_);
  options_ = {};
  EXPECT_EQ(Parse({"--config", config.c_str()}), std::nullopt) << errors_ << output_;
  EXPECT_EQ(options_.threads, 5);
  EXPECT_EQ(options_.decode, (std::vector<std::string>{"a:1", "b:2"}));
  EXPECT_TRUE(options_.fast);
  EXPECT_EQ(options_.pool, std::size_t{2} << 30);
}

TEST(FlagValues, HostPort) {
  for (const char* good : {"127.0.0.1:0", "localhost:8000", "[::1]:65535", "a-b.c:1"}) {
    EXPECT_TRUE(CheckHostPort(good).ok()) << good;
  }
  for (const char* bad : {"", ":1", "host", "host:", "host:65536", "host:-1", "::1:80", "h:1x"}) {
    EXPECT_FALSE(CheckHostPort(bad).ok()) << bad;
  }
}

TEST(FlagValues, HostsThatNobodyElseReaches) {
  for (const char* host :
       {"0.0.0.0", "0", "0.0", "*", "[::]", "::", "[0:0::0]", "[::ffff:0.0.0.0]"}) {
    EXPECT_TRUE(IsWildcardHost(host)) << host;
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
  }
  for (const char* host : {"127.0.0.1", "127.1", "127.3.2.1", "localhost", "[::1]", "[0:0::1]",
                           "[::ffff:127.0.0.1]"}) {
    EXPECT_TRUE(IsLoopbackHost(host)) << host;
    EXPECT_FALSE(IsWildcardHost(host)) << host;
  }
  for (const char* host :
       {"10.0.0.1", "128.0.0.1", "[fe80::1]", "[::2]", "prefill-0", "0.0.0.1", ""}) {
    EXPECT_FALSE(IsWildcardHost(host) || IsLoopbackHost(host)) << host;
  }
}

TEST(FlagValues, Sizes) {
  EXPECT_EQ(ParseBytes("4096"), 4096u);
  EXPECT_EQ(ParseBytes("2GiB"), std::size_t{2} << 30);
  for (const char* bad :
       {"", "GiB", "2GB", "-1", "1.5GiB", "99999999999999999999", "18446744073709551615KiB"}) {
    EXPECT_EQ(ParseBytes(bad), std::nullopt) << bad;
  }
}

TEST(FlagSubcommands, OwnFlagsAndTheParents) {
  std::string server = "127.0.0.1:8000";
  std::optional<std::string> prompt;
  std::optional<std::int64_t> max_tokens;
  Flags flags("baton", "Client.");
  flags.Text("server", &server, "router");
  Flags& complete = flags.Subcommand("complete", "Complete a prompt.");
  complete.Positional("PROMPT", &prompt, "text");
  complete.OptionalInteger("max-tokens", &max_tokens, 1, 1 << 20, "tokens");
  flags.Subcommand("models", "List models.");
  const char* words[] = {"baton", "complete", "--server", "h:1", "--max-tokens=5", "some text"};

  EXPECT_EQ(flags.Parse(6, words), std::nullopt);

  EXPECT_EQ(flags.chosen_subcommand(), "complete");
  EXPECT_EQ(server, "h:1");
  EXPECT_EQ(prompt, "some text");
  EXPECT_EQ(max_tokens, 5);
}

}  // namespace
}  // namespace baton
