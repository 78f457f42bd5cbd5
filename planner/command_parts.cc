#include "planner/command_parts.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

Table ErrorTable(const char* key, const char* heading, const std::vector<ModelError>& errors) {
  Table table{.key = key,
              .heading = heading,
              .columns = {{"what", "what"},
                          {"measured_ms", "measured, ms"},
                          {"predicted_ms", "predicted, ms"},
                          {"error_percent", "error, %"}}};
  for (const ModelError& error : errors) {
    table.rows.push_back({error.what, Num(error.measured_seconds * 1000, 2),
                          Num(error.predicted_seconds * 1000, 2), Num(error.relative() * 100, 1)});
  }
  return table;
}

std::string Percent(std::optional<double> share) {
  return share.has_value() ? absl::StrCat(FormatNumber({*share * 100, 1}), " %") : "nothing to say";
}

}  // namespace

Eviction ParseEviction(const std::string& name) {
  if (name == "least-recent") {
    return Eviction::kLeastRecent;
  }
  return name == "random" ? Eviction::kRandom : Eviction::kFirstIn;
}

absl::StatusOr<const TransportRate*> ChooseTransport(const Measured& measured) {
  const MeasuredRates& rates = measured.model->rates();
  if (rates.transports.empty()) {
    return absl::InvalidArgumentError("transports: the rates file has none");
  }
  if (measured.transport.empty()) {
    return &rates.transports.front();
  }
  const TransportRate* transport = rates.FindTransport(measured.transport);
  if (transport == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("--transport: the rates file has no \"", measured.transport, "\""));
  }
  return transport;
}

void AddErrors(const CostModel& model, Report& report) {
  const std::vector<ModelError> fit = FitErrors(model);
  const std::vector<ModelError> requests = RequestErrors(model);
  report.tables.push_back(ErrorTable("fit", "The fitted curves beside the rates", fit));
  if (!requests.empty()) {
    report.tables.push_back(ErrorTable(
        "requests", "Time to first token beside requests that the fit has not seen", requests));
  }
  report.notes.push_back(absl::StrCat("median error of the curves: ", Percent(MedianError(fit)),
                                      "; of requests: ", Percent(MedianError(requests))));
  if (!model.rates().source.empty()) {
    report.notes.push_back(absl::StrCat("rates: ", model.rates().source));
  }
}

Cell Length(std::optional<int> tokens) {
  return tokens.has_value() ? Num(*tokens, 0) : Cell(std::monostate());
}

}  // namespace baton
