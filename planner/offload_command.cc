#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "planner/break_even.h"
#include "planner/command_parts.h"
#include "planner/offload.h"

namespace baton {
namespace {

constexpr OffloadPolicy kPolicies[] = {OffloadPolicy::kNativeOnly, OffloadPolicy::kCpuOffload,
                                       OffloadPolicy::kSharedStore};
constexpr double kLoadMsPerBlock[] = {3.0, 1.5, 0.4, 0.2, 0.08, 0.02, 0};
constexpr double kLengths[] = {16, 64, 256, 512, 1024, 2048, 4096, 8192};

OffloadConfig MakeConfig(const OffloadOptions& options, OffloadPolicy policy) {
  OffloadConfig config = CourseOffloadConfig(policy);
  if (options.slots.has_value()) {
    config.slots = static_cast<int>(*options.slots);
  }
  config.eviction = ParseEviction(options.eviction);
  config.eviction_seed = static_cast<std::uint64_t>(options.eviction_seed);
  config.load_ms_per_block = options.load_ms_per_block;
  return config;
}

// The simulation's prompts at measured rates, copies by the transport, tokens by steps of one.
OffloadCosts MeasuredCosts(const CostModel& model, const TransportRate& transport) {
  constexpr double kDepth = 4000;
  OffloadCosts costs{.decode_ms_per_token = model.DecodeStepSeconds(1, kDepth) * 1000};
  for (std::size_t i = 0; i < kOffloadPromptTokens.size(); ++i) {
    costs.prefill_ms[i] = model.PrefillSeconds(kOffloadPromptTokens[i]) * 1000;
    costs.copy_ms[i] = model.TransferSeconds(transport, kOffloadPromptTokens[i]) * 1000;
  }
  return costs;
}

absl::StatusOr<Table> PolicyTable(const OffloadOptions& options,
                                  const char* key,
                                  const std::string& rates,
                                  const std::optional<OffloadCosts>& costs) {
  Table table{.key = key,
              .heading = absl::StrCat("200 requests, 6 prefixes, 4 engines, ", rates),
              .columns = {{"policy", "policy"},
                          {"slots", "slots"},
                          {"total_ms", "total, ms"},
                          {"prefill_ms", "prefill and copies, ms"},
                          {"avoided", "prefills avoided"},
                          {"shared_hits", "of these shared"},
                          {"speedup", "speed-up"}}};
  double native_ms = 0;
  for (const OffloadPolicy policy : kPolicies) {
    OffloadConfig config = MakeConfig(options, policy);
    config.costs = costs;
    ASSIGN_OR_RETURN(const OffloadResult result, SimulateOffload(config));
    native_ms = policy == OffloadPolicy::kNativeOnly ? result.total_ms : native_ms;
    table.rows.push_back({OffloadPolicyName(policy),
                          config.slots.has_value() ? Num(*config.slots) : Cell("unlimited"),
                          Num(result.total_ms, 3), Num(result.prefill_ms, 2), Num(result.avoided()),
                          Num(result.shared_hits), Num(native_ms / result.total_ms, 4)});
  }
  return table;
}

std::string SlotsName(int slots) {
  return slots == 1 ? std::string("1 slot") : absl::StrCat(slots, " slots");
}

// Speed-up of the shared store over engines with as many slots.
absl::StatusOr<double> EqualSlotsSpeedup(int slots, double load_ms_per_block) {
  ASSIGN_OR_RETURN(const OffloadResult native, SimulateOffload({.slots = slots}));
  ASSIGN_OR_RETURN(const OffloadResult store,
                   SimulateOffload({.policy = OffloadPolicy::kSharedStore,
                                    .slots = slots,
                                    .load_ms_per_block = load_ms_per_block}));
  return native.total_ms / store.total_ms;
}

absl::Status AddEqualSlots(Report& report) {
  Table table{
      .key = "equal_slots",
      .heading = "Shared store over native only, with the same slots in both",
      .columns = {{"load_ms_per_block", "load, ms a block"}, {"gb_per_s", "GB/s at 2 MB a block"}}};
  report.plot = {.title = "Shared store over native only, equal slots",
                 .x_label = "load time, ms a block",
                 .y_label = "speed-up",
                 .marked_x = OffloadBreakEvenMsPerBlock(),
                 .mark = "0.4 ms = 5 GB/s"};
  for (int slots = 6; slots >= 1; --slots) {
    table.columns.push_back({absl::StrCat("slots_", slots), SlotsName(slots)});
    report.plot.lines.push_back({SlotsName(slots), {}});
  }
  for (const double ms : kLoadMsPerBlock) {
    std::vector<Cell> row = {Num(ms), Num(OffloadBytesPerSecond(ms) / 1e9, 2)};
    for (int slots = 6; slots >= 1; --slots) {
      ASSIGN_OR_RETURN(const double speedup, EqualSlotsSpeedup(slots, ms));
      row.push_back(Num(speedup, 4));
      auto& points = report.plot.lines[static_cast<std::size_t>(6 - slots)].points;
      points.insert(points.begin(), {ms, speedup});
    }
    table.rows.push_back(std::move(row));
  }
  report.tables.push_back(std::move(table));
  return absl::OkStatus();
}

std::string MeasuredClaim(const CostModel& model, double speedup) {
  constexpr double kTokens = 1024;
  const double rate = *LoadBreakEvenBytesPerSecond(model, kTokens, 0);
  return absl::StrCat(speedup > 1 ? "confirms" : "contradicts",
                      " \"LMCache beats native when prefixes are shared\": ",
                      FormatNumber({speedup, 3}), "x at measured rates, where loading ", kTokens,
                      " tokens pays above ", FormatNumber({rate / 1e9, 4}), " GB/s");
}

absl::Status AddMeasured(const OffloadOptions& options, const Measured& measured, Report& report) {
  const CostModel& model = *measured.model;
  ASSIGN_OR_RETURN(const TransportRate* chosen, ChooseTransport(measured));
  ASSIGN_OR_RETURN(Table policies,
                   PolicyTable(options, "measured_policies",
                               absl::StrCat("by measured rates, copies over ", chosen->name),
                               MeasuredCosts(model, *chosen)));
  report.claim = MeasuredClaim(model, std::get<Number>(policies.rows.back().back()).value);
  report.tables.push_back(std::move(policies));
  Table bandwidths{.key = "measured_break_even",
                   .heading = "Bytes per second above which loading KV beats computing it",
                   .columns = {{"prompt_tokens", "prompt, tokens"},
                               {"prefill_ms", "prefill, ms"},
                               {"free_gb_per_s", "no fixed cost, GB/s"}}};
  for (const TransportRate& transport : model.rates().transports) {
    bandwidths.columns.push_back({absl::StrCat(transport.name, "_gb_per_s"),
                                  absl::StrCat("fixed cost of ", transport.name, ", GB/s")});
  }
  const auto cell = [](std::optional<double> bytes_per_second) {
    return bytes_per_second.has_value() ? Num(*bytes_per_second / 1e9, 4) : Cell();
  };
  for (const double tokens : kLengths) {
    std::vector<Cell> row = {Num(tokens), Num(model.PrefillSeconds(tokens) * 1000, 2),
                             cell(LoadBreakEvenBytesPerSecond(model, tokens, 0))};
    for (const TransportRate& transport : model.rates().transports) {
      row.push_back(cell(LoadBreakEvenBytesPerSecond(model, tokens, transport.fixed_seconds)));
    }
    bandwidths.rows.push_back(std::move(row));
  }
  Table lengths{.key = "measured_lengths",
                .heading = "Prompt length from which a load at the measured rate beats computing",
                .columns = {{"transport", "transport"},
                            {"fixed_ms", "fixed, ms"},
                            {"gb_per_s", "GB/s"},
                            {"tokens", "tokens"}}};
  for (const TransportRate& transport : model.rates().transports) {
    lengths.rows.push_back({transport.name, Num(transport.fixed_seconds * 1000, 3),
                            Num(transport.bytes_per_second / 1e9, 3),
                            Length(LoadBreakEvenTokens(model, transport))});
  }
  report.tables.push_back(std::move(bandwidths));
  report.tables.push_back(std::move(lengths));
  AddErrors(model, report);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Report> PlanOffload(const OffloadOptions& options, const Measured& measured) {
  Report report{.command = "offload", .mode = measured.model == nullptr ? "paper" : "measured"};
  ASSIGN_OR_RETURN(Table policies,
                   PolicyTable(options, "policies", "the course's rates", std::nullopt));
  report.tables.push_back(std::move(policies));
  RETURN_IF_ERROR(AddEqualSlots(report));
  report.claim =
      "contradicts \"LMCache beats native when prefixes are shared\": as shipped it loses (3 ms a "
      "block is 0.67 GB/s); it wins above 5 GB/s, where loading is quicker than computing";
  if (measured.model != nullptr) {
    RETURN_IF_ERROR(AddMeasured(options, measured, report));
  }
  report.notes.push_back(
      "decode is 97.6 % of the time: no cache can make it 1.024 times as fast; cpu-offload wins "
      "only "
      "because its cache has no bound");
  return report;
}

}  // namespace baton
