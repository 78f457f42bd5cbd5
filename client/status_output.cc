#include "client/status_output.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/table.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

constexpr std::size_t kMostWorkers = 24;  // that are shown

std::string RoleName(v1::Role role) {
  return role == v1::ROLE_UNSPECIFIED ? "?"
                                      : absl::AsciiStrToLower(Short(v1::Role_Name(role), "ROLE_"));
}

// "3d 4h", "4h 5m", "5m 6s", "6 s".
std::string Uptime(const google::protobuf::Duration& duration) {
  const std::int64_t seconds = FromProtoDuration(duration) / std::chrono::seconds(1);
  constexpr std::int64_t kMinute = 60;
  constexpr std::int64_t kHour = 60 * kMinute;
  constexpr std::int64_t kDay = 24 * kHour;
  if (seconds >= kDay) {
    return absl::StrCat(seconds / kDay, "d ", seconds % kDay / kHour, "h");
  }
  if (seconds >= kHour) {
    return absl::StrCat(seconds / kHour, "h ", seconds % kHour / kMinute, "m");
  }
  return seconds >= kMinute ? absl::StrCat(seconds / kMinute, "m ", seconds % kMinute, "s")
                            : absl::StrCat(seconds, " s");
}

std::string Bytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string Percent(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? "-" : absl::StrCat(100 * part / whole, "%");
}

std::string Counted(std::uint64_t count, const char* one, const char* many) {
  return absl::StrCat(count, " ", count == 1 ? one : many);
}

bool IsWell(const v1::WorkerStatus& worker) {
  return worker.alive() && worker.problem().empty();
}

std::string State(const v1::WorkerStatus& worker) {
  if (!worker.alive()) {
    return "dead";
  }
  if (worker.description().draining()) {
    return "draining";
  }
  return worker.problem().empty() ? "ok" : "refused";
}

Cells WorkerRow(const v1::WorkerStatus& worker) {
  const v1::WorkerDescription& description = worker.description();
  const v1::EngineLoad& load = description.load();
  const std::string most =
      description.max_sequences() > 0 ? absl::StrCat("/", description.max_sequences()) : "";
  return {RoleName(description.role()),
          worker.address(),
          description.zone().empty() ? "-" : description.zone(),
          State(worker),
          absl::StrCat(load.running_sequences(), most),
          absl::StrCat(load.waiting_sequences()),
          absl::StrCat(load.open_handoffs()),
          absl::StrCat(load.free_blocks(), "/", load.total_blocks()),
          absl::StrCat(load.cached_blocks()),
          Percent(load.prefix_hit_tokens(), load.prefix_query_tokens()),
          absl::StrCat(load.prefilled_tokens()),
          absl::StrCat(load.decoded_tokens()),
          description.transport(),
          worker.problem()};
}

std::string DescribeFleet(const v1::StatusResponse& status) {
  std::vector<const v1::WorkerStatus*> workers;
  std::map<std::string, std::size_t> of_role;
  std::size_t unwell = 0;
  for (const v1::WorkerStatus& worker : status.workers()) {
    workers.push_back(&worker);
    ++of_role[RoleName(worker.description().role())];
    unwell += IsWell(worker) ? 0 : 1;
  }
  std::string text = "\nworkers:";
  const char* separator = " ";
  for (const auto& [role, count] : of_role) {
    absl::StrAppend(&text, separator, count, " ", role);
    separator = ", ";
  }
  absl::StrAppend(&text, workers.empty() ? " none" : "",
                  unwell > 0 ? absl::StrCat("; ", unwell, " of them without requests") : "", "\n");
  if (workers.empty()) {
    return text;
  }
  if (workers.size() > kMostWorkers) {
    std::stable_partition(workers.begin(), workers.end(),
                          [](const v1::WorkerStatus* worker) { return !IsWell(*worker); });
  }
  std::vector<Cells> rows = {{"role", "address", "zone", "state", "running", "waiting", "handoffs",
                              "free blocks", "cached", "hits", "prefilled", "decoded", "transport",
                              "problem"}};
  for (std::size_t i = 0; i < std::min(workers.size(), kMostWorkers); ++i) {
    rows.push_back(WorkerRow(*workers[i]));
  }
  absl::StrAppend(&text, Table(rows));
  if (workers.size() > kMostWorkers) {
    absl::StrAppend(&text, "  and ", workers.size() - kMostWorkers, " more; --json shows all\n");
  }
  return text;
}

// How many connections each way of travelling has, and why it was chosen.
std::string DescribeTransports(const v1::StatusResponse& status) {
  std::map<Cells, int> ways;
  for (const v1::WorkerStatus& worker : status.workers()) {
    if (worker.description().role() != v1::ROLE_DECODE) {
      continue;  // each connection has one end at a decode worker
    }
    for (const v1::KvPeer& peer : worker.description().kv_peers()) {
      ++ways[{peer.transport(), peer.carrier(), peer.reason()}];
    }
  }
  if (ways.empty()) {
    return "";
  }
  std::vector<Cells> rows = {{"blocks by", "messages by", "connections", "why"}};
  for (const auto& [way, count] : ways) {
    rows.push_back({way[0], way[1], absl::StrCat(count), way[2]});
  }
  return absl::StrCat("\ntransports:\n", Table(rows));
}

std::string DescribeCrossover(const v1::Crossover& crossover, std::uint32_t configured) {
  std::string measured;
  if (!crossover.known()) {
    measured = crossover.why_unknown().empty()
                   ? "not measured yet"
                   : absl::StrCat("not measured yet: ", crossover.why_unknown());
  } else {
    measured = crossover.pays()
                   ? absl::StrCat("pays from ", crossover.prompt_tokens(), " uncached tokens on")
                   : "pays at no length";
  }
  return absl::StrCat(measured, "; configured: ", configured,
                      crossover.in_use() ? ", the measured one is in use" : ", which is in use");
}

// "device 5 entries, hits 40%; host 7 entries, hits 2%; ...": empty while no worker holds blocks
// elsewhere than on its device.
std::string DescribeTiers(const v1::PrefixIndexStatus& index) {
  std::string text;
  bool slower = false;
  for (const v1::PrefixIndexStatus::Tier& tier : index.tiers()) {
    slower = slower || (tier.tier() != v1::KV_TIER_DEVICE && tier.entries() > 0);
    absl::StrAppend(&text, text.empty() ? "" : "; ",
                    absl::AsciiStrToLower(Short(v1::KvTier_Name(tier.tier()), "KV_TIER_")), " ",
                    Counted(tier.entries(), "entry", "entries"), ", hits ",
                    Percent(tier.hit_tokens(), index.query_tokens()));
  }
  return slower ? text : "";
}

// What only a router knows.
std::string DescribeRouting(const v1::StatusResponse& status) {
  std::vector<Cells> rows;
  rows.push_back(
      {"disaggregation", DescribeCrossover(status.crossover(), status.colocate_below_tokens())});
  if (status.has_prefix_index()) {
    const v1::PrefixIndexStatus& index = status.prefix_index();
    rows.push_back(
        {"prefix index",
         absl::StrCat(Counted(index.entries(), "entry", "entries"), " of ",
                      Counted(index.blocks(), "block", "blocks"), " in ", Bytes(index.bytes()),
                      "; hits ", Percent(index.hit_tokens(), index.query_tokens()), " of ",
                      Counted(index.query_tokens(), "token", "tokens"), "; ",
                      Counted(index.resyncs(), "resync", "resyncs"), ", ", index.left_out(),
                      " left out")});
    if (const std::string tiers = DescribeTiers(index); !tiers.empty()) {
      rows.push_back({"in tiers", tiers});
    }
  }
  if (status.has_admission()) {
    const v1::AdmissionStatus& admission = status.admission();
    rows.push_back(
        {"admission",
         absl::StrCat(Counted(admission.running(), "sequence", "sequences"), " running, ",
                      admission.queued(), " of at most ", admission.queue_size(), " waiting; ",
                      admission.refused(), " refused, ", admission.retried(), " tried again, ",
                      admission.retries_denied(), " not for want of budget")});
  }
  return absl::StrCat("\n", Table(rows));
}

std::string DescribeOutcomes(const v1::StatusResponse& status) {
  // A map of proto has no order.
  const std::map<std::string, std::uint64_t> outcomes(status.requests().begin(),
                                                      status.requests().end());
  std::uint64_t all = 0;
  for (const auto& [outcome, count] : outcomes) {
    all += count;
  }
  std::vector<Cells> rows;
  for (const auto& [outcome, count] : outcomes) {
    rows.push_back({outcome, absl::StrCat(count), Percent(count, all)});
  }
  return absl::StrCat("\nrequests: ", all == 0 ? "none yet" : absl::StrCat(all), "\n", Table(rows));
}

}  // namespace

std::string DescribeStatus(const v1::StatusResponse& status) {
  const bool router = status.role() == v1::ROLE_ROUTER;
  std::string text = absl::StrCat(
      "baton ", RoleName(status.role()), " ", status.version(), ", model ", status.model(), ", ",
      status.ready() ? "ready" : "NOT ready", ", up ", Uptime(status.uptime()),
      status.policy().empty() ? "" : absl::StrCat(", policy ", status.policy()), "\n");
  absl::StrAppend(&text, DescribeFleet(status), DescribeTransports(status));
  if (router) {
    absl::StrAppend(&text, DescribeRouting(status), DescribeOutcomes(status));
  }
  return text;
}

}  // namespace baton
