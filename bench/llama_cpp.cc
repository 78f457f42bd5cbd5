#include "bench/llama_cpp.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/measured_child.h"
#include "common/status_macros.h"

namespace baton {
namespace {

constexpr Duration kQuantizePatience = std::chrono::minutes(4);

// A long prompt is its own warm-up; repeating it would double the time of a run.
constexpr int kLongTokens = 1024;

bool IsBatch(const Figure& figure) {
  return figure.kind == FigureKind::kDecode && figure.decode.streams > 1;
}

absl::Status MakeBf16(const std::string& folder,
                      const std::string& model_file,
                      const std::string& bf16_file) {
  const std::filesystem::path target(bf16_file);
  std::error_code error;
  std::filesystem::create_directories(target.parent_path(), error);
  const std::string unfinished = bf16_file + ".part";
  ASSIGN_OR_RETURN(
      const ChildResult result,
      RunProgram({folder + "/llama-quantize", "--allow-requantize", model_file, unfinished, "BF16"},
                 kQuantizePatience));
  if (result.code != 0) {
    return absl::InternalError(
        absl::StrCat("llama-quantize ", model_file, ": ", DescribeEnd(result)));
  }
  std::filesystem::rename(unfinished, target, error);
  if (error) {
    return absl::InternalError(absl::StrCat("rename to ", bf16_file, ": ", error.message()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<LlamaCpp>> LlamaCpp::Create(const std::string& folder,
                                                           const std::string& model_file,
                                                           const std::string& bf16_file) {
  for (const char* program : {"llama-bench", "llama-batched-bench", "llama-quantize"}) {
    if (!std::filesystem::is_regular_file(folder + "/" + program)) {
      return absl::NotFoundError(absl::StrCat("--peer: ", folder, " has no ", program));
    }
  }
  if (!std::filesystem::is_regular_file(model_file)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--peer: llama.cpp takes a GGUF file, and ", model_file, " is none"));
  }
  if (!std::filesystem::is_regular_file(bf16_file)) {
    RETURN_IF_ERROR(MakeBf16(folder, model_file, bf16_file));
  }
  return std::unique_ptr<LlamaCpp>(new LlamaCpp(folder, model_file, bf16_file));
}

LlamaCpp::LlamaCpp(std::string folder, std::string model_file, std::string bf16_file)
    : folder_(std::move(folder)),
      model_file_(std::move(model_file)),
      bf16_file_(std::move(bf16_file)) {}

absl::StatusOr<PeerTiming> LlamaCpp::Measure(const Figure& figure,
                                             PeerWeights weights,
                                             Duration patience) const {
  const std::string& model = weights == PeerWeights::kBf16 ? bf16_file_ : model_file_;
  std::vector<std::string> command = PeerCommand(folder_, model, figure);
  PeerTiming peer;
  ASSIGN_OR_RETURN(ChildResult result, RunProgram(command, patience));
  if (result.signal.has_value() && !result.outlived_patience && !IsBatch(figure)) {
    // Seen with quantized weights on processors with AMX; see docs/engine-bench.md.
    peer.repacked = false;
    command.insert(command.end(), {"--repack", "0"});
    ASSIGN_OR_RETURN(result, RunProgram(command, patience));
  }
  if (result.outlived_patience) {
    return absl::DeadlineExceededError(absl::StrCat(figure.name, ": the peer was given up after ",
                                                    result.usage.wall_seconds, " s"));
  }
  if (result.code != 0) {
    return absl::InternalError(absl::StrCat(command.front(), ": ", DescribeEnd(result)));
  }
  ASSIGN_OR_RETURN(peer.timing.wall_seconds, ParsePeerSeconds(figure, result.output));
  peer.timing.cpu_seconds =
      peer.timing.wall_seconds * result.usage.cpu_seconds / result.usage.wall_seconds;
  return peer;
}

std::vector<std::string> PeerCommand(const std::string& folder,
                                     const std::string& model_file,
                                     const Figure& figure) {
  const std::string threads = absl::StrCat(figure.threads);
  const DecodeShape& decode = figure.decode;
  if (IsBatch(figure)) {
    return {folder + "/llama-batched-bench",
            "-m",
            model_file,
            "-c",
            absl::StrCat(std::max(8192, decode.streams * (decode.depth + decode.steps))),
            "-npp",
            absl::StrCat(decode.depth),
            "-ntg",
            absl::StrCat(decode.steps),
            "-npl",
            absl::StrCat(decode.streams),
            "-t",
            threads,
            "-tb",
            threads,
            "-fa",
            "on",
            "--output-format",
            "jsonl"};
  }
  std::vector<std::string> command = {
      folder + "/llama-bench", "-m", model_file, "-t", threads, "-fa", "1", "-o", "jsonl"};
  const bool is_prefill = figure.kind == FigureKind::kPrefill;
  if (is_prefill) {
    command.insert(command.end(), {"-p", absl::StrCat(figure.prompt_tokens), "-n", "0"});
  } else {
    command.insert(command.end(),
                   {"-p", "0", "-n", absl::StrCat(decode.steps), "-d", absl::StrCat(decode.depth)});
  }
  if ((is_prefill ? figure.prompt_tokens : decode.depth) >= kLongTokens) {
    command.insert(command.end(), {"-r", "1", "--no-warmup"});
  } else {
    command.insert(command.end(), {"-r", "2"});
  }
  return command;
}

absl::StatusOr<double> ParsePeerSeconds(const Figure& figure, const std::string& output) {
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) {
      continue;
    }
    if (IsBatch(figure)) {
      if (const auto seconds = json.find("t_tg"); seconds != json.end() && seconds->is_number()) {
        return seconds->get<double>();
      }
      continue;
    }
    const auto samples = json.find("samples_ns");
    if (samples == json.end() || !samples->is_array() || samples->empty()) {
      continue;
    }
    double sum = 0;
    for (const nlohmann::json& sample : *samples) {
      sum += sample.is_number() ? sample.get<double>() : 0;
    }
    return 1e-9 * sum / static_cast<double>(samples->size());
  }
  return absl::InternalError(absl::StrCat(figure.name, ": the peer reported no time: ", output));
}

}  // namespace baton
