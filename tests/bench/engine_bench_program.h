#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "bench/measured_child.h"
#include "common/check.h"
#include "tests/support/process.h"
#include "tests/support/test_models.h"

namespace baton {

// Runs the program `engine-bench` of this build on the tiny model.
inline ChildResult RunEngineBench(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {ProgramPath("engine-bench")};
  for (const std::string& flag : TinyModel().Flags()) {
    command.push_back(flag);
  }
  command.insert(command.end(), arguments.begin(), arguments.end());
  absl::StatusOr<ChildResult> result = RunProgram(command, std::chrono::minutes(5));
  BATON_CHECK(result.ok());
  return *std::move(result);
}

}  // namespace baton
