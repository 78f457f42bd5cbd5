#include "tests/support/process.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "tests/support/patience.h"
#include "tests/support/reserved_port.h"

namespace baton {
namespace {

std::unique_ptr<ChildProcess> StartShell(const std::string& script) {
  absl::StatusOr<std::unique_ptr<ChildProcess>> process =
      ChildProcess::Start("/bin/sh", {"-c", script});
  EXPECT_TRUE(process.ok()) << process.status();
  return *std::move(process);
}

TEST(ChildProcess, LinesErrorsAndExitCodeAreKept) {
  const auto process = StartShell("echo one; echo two; echo three; echo trouble >&2; exit 7");

  EXPECT_EQ(process->ReadLine(kPatience).value(), "one");
  EXPECT_EQ(process->ReadLine(kPatience).value(), "two");
  EXPECT_EQ(process->WaitForEnd(kPatience)->code, 7);
  EXPECT_EQ(process->ReadRest(), "three\n");
  EXPECT_EQ(process->ErrorOutput(), "trouble\n");
}

TEST(ChildProcess, NoLineIsAnErrorWithWhatWasWritten) {
  const auto ended = StartShell("echo nothing works >&2");
  const absl::Status no_more = ended->ReadLine(kPatience).status();
  EXPECT_EQ(no_more.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(no_more.message()).find("nothing works"), std::string::npos);

  const auto silent = StartShell("read nothing; exec tail -f /dev/null");
  EXPECT_EQ(silent->ReadLine(std::chrono::milliseconds(20)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(silent->WaitForEnd(std::chrono::milliseconds(20)).has_value());
}

TEST(ChildProcess, IsGoneWithItsOwner) {
  pid_t pid = 0;
  {
    const auto process = StartShell("exec tail -f /dev/null");
    pid = process->pid();
    process->Signal(SIGSTOP);
  }

  EXPECT_EQ(kill(pid, 0), -1);
}

TEST(ChildProcess, AProgramThatIsAbsentIsAnError) {
  EXPECT_FALSE(ChildProcess::Start("/no/such/program", {}).ok());
}

TEST(ReservedPort, NoTwoAreTheSame) {
  EXPECT_NE(ReservedPort().number(), 0);
}

}  // namespace
}  // namespace baton
