// Measures how fast KV blocks move from one process to another, beside a raw TCP socket and memcpy.
// Method and members of the JSON object: docs/transfer-bench.md.
//
//   transfer-bench [--json] [--rounds N] [--only TRANSPORT] [--peer COMMAND] ...
//
// Starts itself as the processes of each row: `transfer-bench receive-end ROW BLOCKS LAYERS
// LAYER_BYTES apart|anywhere`, which starts `transfer-bench send-end ...`; both take lines on
// standard input and are of no use by hand.
#include <sys/utsname.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/own_network.h"
#include "bench/transfer_report.h"
#include "bench/transfer_rounds.h"
#include "bench/transfer_row.h"
#include "common/flags.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace baton {
namespace {

struct TransferBenchFlags {
  std::int64_t tokens = 4096;
  std::int64_t rounds = 7;
  std::vector<std::string> only;
  std::string piece = "both";
  std::vector<std::string> peers;
  std::string network = "own";
  std::string cores = "apart";
  bool quick = false;
  bool json = false;
};

std::string AllNames() {
  std::string names;
  for (const TransferRow& row : TransferRows()) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", row.name);
  }
  return names;
}

absl::Status CheckFlags(const TransferBenchFlags& settings) {
  for (const std::string& name : settings.only) {
    if (FindTransferRow(name) == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--only: there is no transport ", name, "; there are ", AllNames()));
    }
  }
  if (settings.tokens % kBlockTokens != 0) {
    return absl::InvalidArgumentError("--tokens: not a multiple of the 16 tokens of a block");
  }
  return absl::OkStatus();
}

void AddFlags(Flags& flags, TransferBenchFlags& settings) {
  flags.Integer("tokens", &settings.tokens, 16, 131072,
                "tokens whose blocks one transfer moves, a multiple of 16; 4096 are 94 MB");
  flags.Integer("rounds", &settings.rounds, 1, 1000, "times that every row is measured");
  flags.TextList("only", &settings.only,
                 absl::StrCat("measure this row and what it is held against alone, of ", AllNames(),
                              "; absent: all"));
  flags.Choice("piece", &settings.piece, {"both", "block", "layer"},
               "what becomes ready at once: whole blocks, or one layer of them");
  flags.TextList("peer", &settings.peers,
                 "shell command of another program that moves the same pieces in the same rounds, "
                 "e.g. \"PYTHON bench/nixl_peer.py\"");
  flags.Choice("network", &settings.network, {"own", "host"},
               "own: a network namespace with cubic where this machine allows one; host: as it is");
  flags.Choice(
      "cores", &settings.cores, {"apart", "anywhere"},
      "apart: the sender on the first core, the receiver on the last, as two machines would "
      "be; anywhere: where the system puts them");
  flags.Switch("quick", &settings.quick,
               "512 tokens and 2 rounds: shows that it works, not how fast");
  flags.Switch("json", &settings.json, "print one JSON object");
  flags.Check([&settings] { return CheckFlags(settings); });
}

std::vector<std::string> ChosenRows(const TransferBenchFlags& settings) {
  std::vector<std::string> names;
  for (const TransferRow& row : TransferRows()) {
    const bool chosen =
        settings.only.empty() ||
        std::any_of(settings.only.begin(), settings.only.end(), [&](const std::string& name) {
          return name == row.name || FindTransferRow(name)->limit == row.name;
        });
    if (chosen) {
      names.push_back(row.name);
    }
  }
  return names;
}

// The rest of the first line of `path` that starts with `key`, up to `end`.
std::string LineOf(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) == 0) {
      return line.substr(std::min(line.size(), line.find_first_not_of(" \t:", key.size())));
    }
  }
  return "unknown";
}

std::string DescribeMachine() {
  utsname system{};
  uname(&system);
  return absl::StrCat(LineOf("/proc/cpuinfo", "model name"), ", ",
                      std::thread::hardware_concurrency(), " cores, ", system.sysname, " ",
                      system.release);
}

std::string DescribePages() {
  return absl::StrCat("pools anonymous with MADV_HUGEPAGE (transparent huge pages: ",
                      LineOf("/sys/kernel/mm/transparent_hugepage/enabled", ""),
                      "), except where a memfd is named (shared memory: ",
                      LineOf("/sys/kernel/mm/transparent_hugepage/shmem_enabled", ""), ")");
}

absl::StatusOr<bool> Run(const TransferBenchFlags& settings) {
  TransferRoundsOptions options{
      .rounds = static_cast<int>(settings.quick ? 2 : settings.rounds),
      .rows = ChosenRows(settings),
      .peers = settings.peers,
      .progress = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }};
  options.shape.blocks = static_cast<int>((settings.quick ? 512 : settings.tokens) / kBlockTokens);
  options.shape.cores_apart = settings.cores == "apart";
  if (settings.piece != "both") {
    options.pieces = {*PieceFromString(settings.piece)};
  }
  const std::string pages = DescribePages();
  const NetworkOutcome network =
      settings.network == "own"
          ? EnterOwnNetwork()
          : NetworkOutcome{.description =
                               "the host's, as asked: TCP runs under the host's "
                               "congestion control and beside its other traffic"};
  options.progress(absl::StrCat("network: ", network.description));
  ASSIGN_OR_RETURN(TransferReport report, MeasureTransfers(options));
  report.machine = DescribeMachine();
  report.network = network.description;
  report.pages = pages;
  std::fputs((settings.json ? ToJson(report) : ToTable(report)).c_str(), stdout);
  return IsComplete(report);
}

// `transfer-bench receive-end|send-end ROW BLOCKS LAYERS LAYER_BYTES apart|anywhere`.
int RunEnd(const std::vector<std::string>& arguments) {
  const TransferRow* row = arguments.size() == 6 ? FindTransferRow(arguments[1]) : nullptr;
  if (row == nullptr) {
    return 2;
  }
  const TransferShape shape{.blocks = std::atoi(arguments[2].c_str()),
                            .layers = std::atoi(arguments[3].c_str()),
                            .layer_bytes = std::stoul(arguments[4]),
                            .cores_apart = arguments[5] == "apart"};
  const absl::Status status =
      arguments[0] == kReceiveEnd ? RunReceiver(*row, shape) : RunSenderOf(*row, shape);
  if (!status.ok()) {
    std::fprintf(stderr, "transfer-bench %s %s: %s\n", arguments[0].c_str(), arguments[1].c_str(),
                 std::string(status.message()).c_str());
  }
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  baton::SetUpLog({.component = "transfer-bench", .level = baton::LogLevel::kWarn});
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() &&
      (arguments[0] == baton::kReceiveEnd || arguments[0] == baton::kSendEnd)) {
    return baton::RunEnd(arguments);
  }
  baton::TransferBenchFlags settings;
  baton::Flags flags("transfer-bench",
                     "Measures how fast KV blocks move from one process to another, beside a raw "
                     "TCP socket and memcpy.");
  baton::AddFlags(flags, settings);
  if (const std::optional<int> code = flags.Parse(argc, argv); code.has_value()) {
    return *code;
  }
  const absl::StatusOr<bool> complete = baton::Run(settings);
  if (!complete.ok()) {
    std::fprintf(stderr, "transfer-bench: %s\n", std::string(complete.status().message()).c_str());
    return 1;
  }
  return *complete ? 0 : 1;
}
