// The program `baton` itself: exit codes and what goes where.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "tests/frontend/completions_harness.h"

namespace baton {
namespace {

struct Outcome {
  int code = -1;
  std::string out;  // with standard error, when the command line says so
};

Outcome RunBaton(const std::string& arguments) {
  std::FILE* pipe = popen(absl::StrCat(BATON_PROGRAM, " ", arguments).c_str(), "r");
  BATON_CHECK(pipe != nullptr);
  Outcome outcome;
  char buffer[4096];
  for (std::size_t count = 0; (count = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    outcome.out.append(buffer, count);
  }
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

TEST(Program, WrongUsageIsExitCode2) {
  for (const char* arguments :
       {"", "complete", "complete a --prompt-file b", "complete x --max-tokens -1",
        "complete x --max-tokens 1.5", "complete x --temperature -0.5",
        "complete x --temperature nan", "complete x --seed -1", "complete x --path sideways",
        "complete x --nonsense", "tokenize", "status --server nowhere", "complete x --timeout 0",
        "complete x --top-p 1.5", "complete x --n 0", "complete x --n 17",
        "complete x --logprobs 21", "complete x --logprobs -1", "chat --n 2"}) {
    const Outcome outcome = RunBaton(absl::StrCat(arguments, " 2>&1 </dev/null"));
    EXPECT_EQ(outcome.code, 2) << arguments << "\n" << outcome.out;
    EXPECT_NE(outcome.out, "") << arguments;
  }
}

TEST(Program, TheStandardSwitchesWork) {
  for (const char* arguments :
       {"--help", "complete --help", "--version", "--print-config", "--check-config"}) {
    EXPECT_EQ(RunBaton(arguments).code, 0) << arguments;
  }
}

TEST(Program, AFailureIsExitCode1AndNamesServerAndReason) {
  const Outcome outcome = RunBaton("complete x --server 127.0.0.1:1 2>&1");

  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.out.find("127.0.0.1:1"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("UNAVAILABLE"), std::string::npos) << outcome.out;
}

TEST(Program, CompletesFromStandardInput) {
  CompletionsHarness harness;
  harness.AnswerWith("fine");
  const Outcome outcome =
      RunBaton(absl::StrCat("complete - --json --server ", harness.address, " </dev/null 2>&1"));
  EXPECT_EQ(outcome.code, 1) << "an empty prompt";
  EXPECT_NE(outcome.out.find("INVALID_ARGUMENT: prompt"), std::string::npos) << outcome.out;

  const Outcome good =
      RunBaton(absl::StrCat("complete hello --max-tokens 4 --server ", harness.address));
  EXPECT_EQ(good.code, 0);
  EXPECT_EQ(good.out.substr(0, 5), "fine\n");
}

TEST(Program, TheServerCanComeFromTheEnvironment) {
  CompletionsHarness harness;
  setenv("BATON_SERVER", harness.address.c_str(), 1);
  const Outcome outcome = RunBaton("models");
  unsetenv("BATON_SERVER");

  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out.substr(0, 5), "tiny\n");
}

}  // namespace
}  // namespace baton
