#include "bench/transfer_rounds.h"

#include <sys/utsname.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/line_child.h"
#include "bench/transfer_row.h"
#include "bench/transfer_sender.h"
#include "common/status_macros.h"

namespace baton {
namespace {

using Json = nlohmann::json;

// Filling, moving and checking, and the sender's own patience.
constexpr Duration kAnswerPatience = 3 * kTransferPatience;

// A process that moves blocks when told to, for one or more rows: a receiver of ours or a peer.
struct Contender {
  std::vector<std::string> command;
  std::unique_ptr<LineChild> child;
  std::vector<std::string> transports;
};

absl::Status Restart(Contender& contender) {
  contender.child.reset();
  ASSIGN_OR_RETURN(contender.child, LineChild::Start(contender.command));
  ASSIGN_OR_RETURN(const std::string line, contender.child->ReadLine(kAnswerPatience));
  const Json hello = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!hello.is_object() || !hello.contains("transports") || !hello["transports"].is_array()) {
    return absl::InternalError(absl::StrCat("not a list of transports: ", line));
  }
  contender.transports.clear();
  for (const Json& name : hello["transports"]) {
    contender.transports.push_back(name.is_string() ? name.get<std::string>() : name.dump());
  }
  return absl::OkStatus();
}

double NumberIn(const Json& answer, const char* name) {
  return answer.contains(name) && answer[name].is_number() ? answer[name].get<double>() : 0;
}

std::string TextIn(const Json& answer, const char* name) {
  return answer.contains(name) && answer[name].is_string() ? answer[name].get<std::string>() : "";
}

class Measurement {
 public:
  explicit Measurement(const TransferRoundsOptions& options) : options_(options) {}

  absl::StatusOr<TransferReport> Run();

 private:
  struct Row {
    RowSamples samples;
    Contender* contender;  // in contenders_
  };

  absl::Status StartAll();
  void AddRows(Contender& contender, const std::string& limit);
  void MeasureFirst();
  void MeasureRound(int round);
  absl::StatusOr<TransferSample> Transfer(Row& row, int round);
  void Fail(Row& row, const absl::Status& why);
  void Progress(const std::string& line) const {
    if (options_.progress) {
      options_.progress(line);
    }
  }

  const TransferRoundsOptions& options_;
  std::vector<std::unique_ptr<Contender>> contenders_;
  std::vector<Row> rows_;
  std::set<std::string> congestion_control_;
};

absl::StatusOr<TransferReport> Measurement::Run() {
  const TimePoint start = Clock::System().Now();
  RETURN_IF_ERROR(StartAll());
  MeasureFirst();
  for (int round = 1; round <= options_.rounds; ++round) {
    MeasureRound(round);
  }
  TransferReport report{
      .shape = options_.shape,
      .congestion_control =
          congestion_control_.empty() ? "none" : absl::StrJoin(congestion_control_, ", "),
      .seconds = std::chrono::duration<double>(Clock::System().Now() - start).count()};
  for (Row& row : rows_) {
    report.rows.push_back(std::move(row.samples));
  }
  return report;
}

// Ours must start; a peer that does not is an error too, since it was asked for.
absl::Status Measurement::StartAll() {
  const TransferShape& shape = options_.shape;
  for (const std::string& name : options_.rows) {
    contenders_.push_back(std::make_unique<Contender>());
    contenders_.back()->command = EndCommand(kReceiveEnd, name, shape);
    contenders_.back()->transports = {name};
    AddRows(*contenders_.back(), FindTransferRow(name)->limit);
  }
  for (const std::string& peer : options_.peers) {
    Progress(absl::StrCat("start ", peer));
    contenders_.push_back(std::make_unique<Contender>());
    Contender& contender = *contenders_.back();
    contender.command = {
        "/bin/sh", "-c",
        absl::StrCat("exec ", peer, " --blocks ", shape.blocks, " --layers ", shape.layers,
                     " --layer-bytes ", shape.layer_bytes, " --pool-blocks ", shape.pool_blocks(),
                     shape.cores_apart ? " --cores-apart" : "")};
    RETURN_IF_ERROR(Restart(contender));
    AddRows(contender, options_.peer_limit);
  }
  return absl::OkStatus();
}

void Measurement::AddRows(Contender& contender, const std::string& limit) {
  for (const std::string& transport : contender.transports) {
    for (const Piece piece : options_.pieces) {
      rows_.push_back({.samples = {.transport = transport, .limit = limit, .piece = piece},
                       .contender = &contender});
    }
  }
}

void Measurement::MeasureFirst() {
  for (Row& row : rows_) {
    absl::Status status = Restart(*row.contender);
    if (status.ok()) {
      const absl::StatusOr<TransferSample> sample = Transfer(row, 0);
      status = sample.status();
      if (sample.ok()) {
        row.samples.first = *sample;
      }
    }
    if (!status.ok()) {
      Fail(row, status);
    }
  }
}

void Measurement::MeasureRound(int round) {
  for (Row& row : rows_) {
    if (!row.samples.failure.empty()) {
      continue;
    }
    const absl::StatusOr<TransferSample> sample = Transfer(row, round);
    if (sample.ok()) {
      row.samples.rounds.push_back(*sample);
    } else {
      Fail(row, sample.status());
    }
  }
}

absl::StatusOr<TransferSample> Measurement::Transfer(Row& row, int round) {
  const std::string what =
      absl::StrCat(row.samples.transport, " ", ToString(row.samples.piece), " ", round);
  RETURN_IF_ERROR(row.contender->child->WriteLine(absl::StrCat("transfer ", what)));
  ASSIGN_OR_RETURN(const std::string line, row.contender->child->ReadLine(kAnswerPatience));
  const Json answer = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  const TransferSample sample{
      .seconds = NumberIn(answer, "seconds"),
      .posting_seconds = NumberIn(answer, "posting_seconds"),
      .sender_cpu_seconds = NumberIn(answer, "sender_cpu_seconds"),
      .receiver_cpu_seconds = NumberIn(answer, "receiver_cpu_seconds"),
      .piece_bytes = NumberIn(answer, "piece_bytes"),
      .verified = answer.is_object() && answer.contains("verified") && answer["verified"] == true,
      .carrier = TextIn(answer, "carrier")};
  if (sample.seconds <= 0) {
    return absl::InternalError(absl::StrCat("no transfer: ", line));
  }
  if (const std::string seen = TextIn(answer, "congestion_control"); !seen.empty()) {
    congestion_control_.insert(seen);
  }
  Progress(absl::StrFormat("%s%s: %.1f ms, %.2f GB/s%s", round == 0 ? "first " : "", what,
                           1e3 * sample.seconds,
                           static_cast<double>(options_.shape.bytes()) / 1e9 / sample.seconds,
                           sample.verified ? "" : ", NOT VERIFIED"));
  return sample;
}

void Measurement::Fail(Row& row, const absl::Status& why) {
  row.samples.failure = std::string(why.message());
  Progress(absl::StrCat(row.samples.transport, " ", ToString(row.samples.piece),
                        " failed: ", why.message()));
}

}  // namespace

absl::StatusOr<TransferReport> MeasureTransfers(const TransferRoundsOptions& options) {
  return Measurement(options).Run();
}

}  // namespace baton
