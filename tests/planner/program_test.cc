// The program baton-plan itself: what it prints, exit codes, and what goes where.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace baton {
namespace {

using testing::HasSubstr;

const char* const kCommands[] = {"hogwild", "disagg", "regions", "offload", "size", "crossover"};

struct Outcome {
  int code = -1;
  std::string out;  // with standard error, when the command line says so
};

Outcome RunPlan(const std::string& arguments) {
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

std::string WriteRates(const std::string& text) {
  const std::string path = testing::TempDir() + "plan_program_test_rates.json";
  std::ofstream(path) << text;
  return path;
}

const char kRates[] = R"({
  "version": 1, "source": "made up", "kv_bytes_per_token": 23040, "layers": 30,
  "prefill": [{"prompt_tokens": 128, "tokens_per_second": 900},
              {"prompt_tokens": 2048, "tokens_per_second": 700}],
  "decode": [{"batch": 1, "depth_tokens": 0, "step_seconds": 0.012},
             {"batch": 8, "depth_tokens": 1024, "step_seconds": 0.05}],
  "transports": [{"name": "tcp", "fixed_seconds": 0.004, "bytes_per_second": 1e9}],
  "measured": [{"prompt_tokens": 512, "first_token_seconds": 0.6},
               {"prompt_tokens": 512, "transport": "tcp", "first_token_seconds": 0.6}]})";

TEST(PlanProgram, PrintsTheCourseNumbersOfOneRequest) {
  const Outcome outcome = RunPlan("disagg --prompt 4096 --output 500");

  EXPECT_EQ(outcome.code, 0);
  for (const char* number : {" 5102.4 ", " 2885.2978 ", " 2931.3778 "}) {
    EXPECT_THAT(outcome.out, HasSubstr(number));
  }
}

TEST(PlanProgram, PrintsTheCourseNumbersOfTwoWorkers) {
  const Outcome outcome = RunPlan("hogwild --workers 2 --coordination 0.8");

  EXPECT_EQ(outcome.code, 0);
  for (const char* number : {" 1.804 ", " 341 ", " 376 ", " 1.801802 "}) {
    EXPECT_THAT(outcome.out, HasSubstr(number));
  }
}

TEST(PlanProgram, PrintsTheCourseNumbersOfRoutersAndOffload) {
  const std::string regions = RunPlan("regions").out;
  for (const char* number : {" 282 ", " 656.285 ", " 321 ", " 568.88 ", " 858 ", " 233.635 "}) {
    EXPECT_THAT(regions, HasSubstr(number));
  }
  EXPECT_THAT(RunPlan("regions --affinity --residency").out, HasSubstr(" 159.96 "));
  const std::string offload = RunPlan("offload").out;
  for (const char* number : {" 374883.333 ", " 369402.083 ", " 380833.333 ", " 0.7579"}) {
    EXPECT_THAT(offload, HasSubstr(number));
  }
  EXPECT_THAT(RunPlan("size").out, HasSubstr(" 28.92 "));
  EXPECT_THAT(RunPlan("crossover").out, HasSubstr(" 3555.6 "));
}

TEST(PlanProgram, PrintsExactlyOneJsonObjectInBothModes) {
  const std::string rates = WriteRates(kRates);
  for (const std::string command : kCommands) {
    for (const std::string mode : {"", " --rates "}) {
      const std::string more = mode.empty() ? "" : absl::StrCat(mode, rates, " ");
      const std::string limits =
          command == "size" && !mode.empty() ? "--rate 0.1 --first-token-limit 60" : "";
      const Outcome outcome = RunPlan(absl::StrCat(command, " --json ", more, limits));
      ASSERT_EQ(outcome.code, 0) << command;
      const auto json = nlohmann::json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
      ASSERT_TRUE(json.is_object()) << command << outcome.out;
      EXPECT_EQ(json["command"], command);
      EXPECT_EQ(json["mode"], mode.empty() ? "paper" : "measured");
      EXPECT_FALSE(json["claim"].get<std::string>().empty());
      EXPECT_EQ(json["claim"].get<std::string>().find('\n'), std::string::npos);
    }
  }
  const auto json = nlohmann::json::parse(RunPlan("hogwild --json").out);
  EXPECT_NEAR(json["runs"][0]["speedup"].get<double>(), 1.804233, 5e-7);
}

TEST(PlanProgram, WritesASelfContainedPlot) {
  const std::string rates = WriteRates(kRates);
  const std::string path = testing::TempDir() + "plan_program_test.svg";
  for (const std::string command : kCommands) {
    const Outcome outcome =
        RunPlan(absl::StrCat(command, " --svg ", path, " --rates ", rates,
                             command == "size" ? " --rate 0.1 --first-token-limit 60" : ""));
    ASSERT_EQ(outcome.code, 0) << command;
    std::ostringstream svg;
    svg << std::ifstream(path).rdbuf();
    EXPECT_EQ(svg.str().find("<svg "), 0u);
    EXPECT_THAT(svg.str(), HasSubstr("</svg>"));
    EXPECT_EQ(svg.str().find("href"), std::string::npos);
    EXPECT_EQ(svg.str().find("nan"), std::string::npos);
  }
  EXPECT_EQ(RunPlan("disagg --svg /nonexistent/plot.svg 2>&1").code, 1);
}

TEST(PlanProgram, WrongUsageIsExitCode2) {
  for (const char* arguments :
       {"", "nonsense", "disagg --prompt 0", "disagg --prompt nan", "disagg --prompt -5",
        "disagg --output x", "hogwild --workers 0", "hogwild --coordination 1.5",
        "hogwild --workers 1.5", "hogwild --view sideways", "regions --slots 0",
        "offload --load-ms-per-block -1", "size --rate 0", "size --quantile 1",
        "crossover --prompt 1e9", "disagg --transport tcp", "disagg --nonsense"}) {
    const Outcome outcome = RunPlan(absl::StrCat(arguments, " 2>&1"));
    EXPECT_EQ(outcome.code, 2) << arguments << "\n" << outcome.out;
    EXPECT_NE(outcome.out, "") << arguments;
  }
}

TEST(PlanProgram, TheStandardSwitchesWork) {
  for (const char* arguments : {"--help", "disagg --help", "--version", "--print-config",
                                "size --print-config", "--check-config"}) {
    EXPECT_EQ(RunPlan(arguments).code, 0) << arguments;
  }
  setenv("BATON_PROMPT", "2048", 1);
  const std::string from_environment = RunPlan("disagg --output 400").out;
  unsetenv("BATON_PROMPT");
  EXPECT_THAT(from_environment, HasSubstr(" 2275.9822 "));
}

TEST(PlanProgram, AFailureIsExitCode1AndNamesFileAndField) {
  EXPECT_EQ(RunPlan("disagg --rates /nonexistent.json 2>&1").code, 1);
  const Outcome damaged = RunPlan(absl::StrCat(
      "disagg --rates ", WriteRates(R"({"version": 1, "kv_bytes_per_token": -3})"), " 2>&1"));
  EXPECT_EQ(damaged.code, 1);
  EXPECT_THAT(damaged.out, HasSubstr("plan_program_test_rates.json"));
  EXPECT_THAT(damaged.out, HasSubstr("prefill"));
  const Outcome unknown =
      RunPlan(absl::StrCat("disagg --transport rdma --rates ", WriteRates(kRates), " 2>&1"));
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.out, HasSubstr("--transport"));
  EXPECT_EQ(RunPlan("size --gpu-bytes 7e10 2>&1").code, 1);
}

}  // namespace
}  // namespace baton
