#include "bench/transfer_sender.h"

#include <cstdio>
#include <iostream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/machine_limits.h"
#include "bench/transfer_row.h"
#include "common/status_macros.h"

namespace baton {
namespace {

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// Answers one line; the error ends the process, and its message is the last thing it says.
absl::Status Answer(TransferSender& sender, const std::string& line) {
  if (line == "go") {
    const double cpu = ProcessCpuSeconds();
    ASSIGN_OR_RETURN(const TransferSender::Report report, sender.Send());
    Say(absl::StrFormat("done %.9f %.9f %.1f", ProcessCpuSeconds() - cpu, report.posting_seconds,
                        report.piece_bytes));
    return absl::OkStatus();
  }
  std::istringstream words(line);
  std::string verb;
  std::string piece_name;
  int round = 0;
  std::string ticket;
  words >> verb >> piece_name >> round >> ticket;
  const std::optional<Piece> piece = PieceFromString(piece_name);
  if (verb != "prepare" || !piece.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("unknown request: ", line));
  }
  RETURN_IF_ERROR(sender.Prepare(*piece, round, ticket));
  Say("ready");
  return absl::OkStatus();
}

}  // namespace

absl::Status RunSender(TransferSender& sender) {
  Say(sender.Address());
  for (std::string line; std::getline(std::cin, line);) {
    const absl::Status answered = Answer(sender, line);
    if (!answered.ok()) {
      Say(absl::StrCat("failed ", answered.message()));
      return answered;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SenderProcess>> SenderProcess::Start(const std::string& row,
                                                                    const TransferShape& shape) {
  ASSIGN_OR_RETURN(std::unique_ptr<LineChild> child,
                   LineChild::Start(EndCommand(kSendEnd, row, shape)));
  ASSIGN_OR_RETURN(std::string address, child->ReadLine(kTransferPatience));
  return std::unique_ptr<SenderProcess>(new SenderProcess(std::move(child), std::move(address)));
}

absl::Status SenderProcess::Prepare(Piece piece, int round, const std::string& ticket) {
  RETURN_IF_ERROR(
      child_->WriteLine(absl::StrCat("prepare ", ToString(piece), " ", round, " ", ticket)));
  ASSIGN_OR_RETURN(const std::string answer, child_->ReadLine(kTransferPatience));
  return answer == "ready" ? absl::OkStatus() : absl::InternalError("sender: " + answer);
}

absl::StatusOr<SenderProcess::Done> SenderProcess::AwaitDone() {
  ASSIGN_OR_RETURN(const std::string answer, child_->ReadLine(kTransferPatience));
  std::istringstream words(answer);
  std::string verb;
  Done done;
  words >> verb >> done.cpu_seconds >> done.report.posting_seconds >> done.report.piece_bytes;
  if (verb != "done" || words.fail()) {
    return absl::InternalError("sender: " + answer);
  }
  return done;
}

}  // namespace baton
