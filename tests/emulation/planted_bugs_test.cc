#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/process.h"

// Bugs that kernels have, planted one by one, against the ways to run the emulator: plain, with
// AddressSanitizer and UndefinedBehaviorSanitizer, with ThreadSanitizer. Each is found by the way
// that tests/emulation/README.md names. So the tests of the real kernels can fail.
namespace baton {
namespace {

using testing::HasSubstr;

constexpr char kKernels[] = "tests/emulation/planted_kernels.cuh";

struct Outcome {
  int code = -1;
  std::string output;
  std::string report;  // of a sanitizer
};

// What planted_program.cc ends with.
constexpr int kRight = 0;
constexpr int kWrongValues = 1;
constexpr int kKernelError = 2;
constexpr int kRaceReport = 66;
constexpr int kAddressReport = 67;

Outcome RunProgram(const std::string& program, const std::vector<std::string>& arguments) {
  auto process = ChildProcess::Start(ProgramPath(program), arguments);
  if (!process.ok()) {
    ADD_FAILURE() << process.status();
    return {};
  }
  const std::optional<ProcessEnd> end = (*process)->WaitForEnd(std::chrono::seconds(100));
  if (!end.has_value() || !end->code.has_value()) {
    ADD_FAILURE() << program << " did not end by itself\n" << (*process)->ErrorOutput();
    return {};
  }
  return {*end->code, (*process)->ReadRest(), (*process)->ErrorOutput()};
}

// "planted_kernels.cuh:41" for the line under a comment "found: `what`".
std::string PlaceOf(const std::string& what) {
  std::ifstream source(kKernels);
  std::string line;
  for (int number = 1; std::getline(source, line); ++number) {
    if (line.find("// found: " + what) != std::string::npos) {
      return "planted_kernels.cuh:" + std::to_string(number + 1);
    }
  }
  ADD_FAILURE() << "no line is marked with " << what;
  return {};
}

class PlantedBugs : public testing::Test {
 protected:
  void SetUp() override {
    if (BATON_PLANTED_PROGRAMS == 0) {
      GTEST_SKIP() << "this build has sanitizers of its own; the suite needs the release preset";
    }  // namespace
  }    // namespace baton
};

TEST_F(PlantedBugs, RightKernelsAreFoundRightAndNothingIsReported) {
  for (const char* program :
       {"planted_small_plain", "planted_small_address", "planted_small_thread"}) {
    for (const char* kernel : {"sum_rows", "multiply_staged", "sum_blocks"}) {
      const Outcome outcome = RunProgram(program, {kernel, "none"});

      EXPECT_EQ(outcome.code, kRight) << program << " " << kernel << "\n" << outcome.output;
      EXPECT_EQ(outcome.report, "");
    }
  }
}

TEST_F(PlantedBugs, MissingBarrierBeforeTheMerge) {
  EXPECT_EQ(RunProgram("planted_small_plain", {"sum_rows", "no_barrier_before_merge"}).code,
            kWrongValues);

  const Outcome race = RunProgram("planted_small_thread", {"sum_rows", "no_barrier_before_merge"});
  EXPECT_EQ(race.code, kRaceReport);
  EXPECT_THAT(race.report, HasSubstr("data race"));
  EXPECT_THAT(race.report, HasSubstr(PlaceOf("merge, written")));
  EXPECT_THAT(race.report, HasSubstr(PlaceOf("merge, read")));
}

TEST_F(PlantedBugs, MissingBarrierAfterTheWait) {
  EXPECT_EQ(RunProgram("planted_small_plain", {"multiply_staged", "no_barrier_after_wait"}).code,
            kWrongValues);

  const Outcome race =
      RunProgram("planted_small_thread", {"multiply_staged", "no_barrier_after_wait"});
  EXPECT_EQ(race.code, kRaceReport);
  EXPECT_THAT(race.report, HasSubstr("WaitForCopies"));
  EXPECT_THAT(race.report, HasSubstr(PlaceOf("stage, read")));
}

TEST_F(PlantedBugs, MissingBarrierAtTheEndOfALoop) {
  EXPECT_EQ(RunProgram("planted_small_plain", {"multiply_staged", "no_barrier_at_loop_end"}).code,
            kWrongValues);

  const Outcome race =
      RunProgram("planted_small_thread", {"multiply_staged", "no_barrier_at_loop_end"});
  EXPECT_EQ(race.code, kRaceReport);
  EXPECT_THAT(race.report, HasSubstr("CopyAsync16"));
  EXPECT_THAT(race.report, HasSubstr(PlaceOf("stage, read")));
}

// Why kernel tests have three steps and more: with two, no stage is used twice and nothing is
// wrong.
TEST_F(PlantedBugs, MissingBarrierAtTheEndOfALoopNeedsThreeSteps) {
  EXPECT_EQ(
      RunProgram("planted_small_plain", {"multiply_staged", "no_barrier_at_end_of_two_steps"}).code,
      kRight);
}

TEST_F(PlantedBugs, WaitThatLeavesOneGroupTooMany) {
  for (const char* program : {"planted_small_plain", "planted_small_thread"}) {
    EXPECT_EQ(RunProgram(program, {"multiply_staged", "wait_for_one_group_too_few"}).code,
              kWrongValues)
        << program;
  }
}

TEST_F(PlantedBugs, SwappedFragments) {
  EXPECT_EQ(RunProgram("planted_small_plain", {"multiply_staged", "swapped_fragments"}).code,
            kWrongValues);
}

TEST_F(PlantedBugs, ReadPastTheBlockTable) {
  EXPECT_EQ(RunProgram("planted_small_plain", {"sum_blocks", "past_block_table"}).code,
            kWrongValues);

  const Outcome overflow = RunProgram("planted_small_address", {"sum_blocks", "past_block_table"});
  EXPECT_EQ(overflow.code, kAddressReport);
  EXPECT_THAT(overflow.report, HasSubstr("heap-buffer-overflow"));
  EXPECT_THAT(overflow.report, HasSubstr(PlaceOf("block table, read")));
}

TEST_F(PlantedBugs, DivergentBarrier) {
  for (const char* program :
       {"planted_small_plain", "planted_small_address", "planted_small_thread"}) {
    const Outcome outcome = RunProgram(program, {"sum_rows", "divergent_barrier"});

    EXPECT_EQ(outcome.code, kKernelError) << program << "\n" << outcome.report;
    EXPECT_THAT(outcome.output,
                HasSubstr("divergent threads in block (0, 0, 0): 96 at the barrier"));
    EXPECT_THAT(outcome.output, HasSubstr("32 have ended"));
  }
}

// The real kernels, compiled with a bug of kernels/cuda/planted_bugs.cuh.
class PlantedInAttention : public PlantedBugs {
 protected:
  static Outcome Run(const std::string& program) { return RunProgram(program, {}); }

  // Wrong values in the plain run, and a race that the report places in the kernel.
  static void ExpectRace(const std::string& program, const std::string& place) {
    EXPECT_EQ(Run(program + "_plain").code, kWrongValues) << program;
    const Outcome race = Run(program + "_thread");
    EXPECT_EQ(race.code, kRaceReport) << program;
    EXPECT_THAT(race.report, HasSubstr("data race"));
    EXPECT_THAT(race.report, HasSubstr(place));
  }

  static void ExpectOverflow(const std::string& program) {
    EXPECT_EQ(Run(program + "_plain").code, kWrongValues) << program;
    const Outcome overflow = Run(program + "_address");
    EXPECT_EQ(overflow.code, kAddressReport) << program;
    EXPECT_THAT(overflow.report, HasSubstr("heap-buffer-overflow"));
    EXPECT_THAT(overflow.report, HasSubstr("BlockOfToken"));
  }
};

TEST_F(PlantedInAttention, RightKernelsAreFoundRightAndNothingIsReported) {
  for (const char* kernel : {"planted_decode", "planted_prefill"}) {
    for (const char* variant : {"_plain", "_address", "_thread"}) {
      const Outcome outcome = Run(std::string(kernel) + variant);

      EXPECT_EQ(outcome.code, kRight) << kernel << variant << "\n" << outcome.output;
      EXPECT_EQ(outcome.report, "");
    }
  }
}

TEST_F(PlantedInAttention, MissingBarrierBeforeTheMerge) {
  ExpectRace("planted_decode_missing_merge_barrier", "decode_attention.cu");
}

TEST_F(PlantedInAttention, StageReadTooEarly) {
  ExpectRace("planted_prefill_early_read", "prefill_attention.cu");
}

TEST_F(PlantedInAttention, StageFilledWhileItIsRead) {
  ExpectRace("planted_prefill_loop_end_barrier", "prefill_attention.cu");
}

TEST_F(PlantedInAttention, WaitThatLeavesOneGroupTooMany) {
  // Beyond wrong values a race: the late copy meets the warps that read its stage.
  ExpectRace("planted_prefill_wait_count", "prefill_attention.cu");
}

TEST_F(PlantedInAttention, SwappedFragments) {
  EXPECT_EQ(Run("planted_prefill_swapped_fragments_plain").code, kWrongValues);
}

TEST_F(PlantedInAttention, ReadPastTheBlockTable) {
  ExpectOverflow("planted_decode_past_block_table");
  ExpectOverflow("planted_prefill_past_block_table");
}

TEST_F(PlantedInAttention, DivergentBarrier) {
  const Outcome outcome = Run("planted_decode_divergent_barrier_plain");

  EXPECT_EQ(outcome.code, kKernelError);
  EXPECT_THAT(outcome.output, HasSubstr("divergent threads in block"));
}

}  // namespace
}  // namespace baton
