#include "bench/transfer_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGiga = 1e9;

struct Range {
  double median = 0;
  double least = 0;
  double most = 0;
};

Range RangeOf(const std::vector<double>& values) {
  if (values.empty()) {
    return {};
  }
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return {.median = Median(values), .least = *least, .most = *most};
}

template <typename Value>
std::vector<double> Collect(const RowSamples& row, Value value) {
  std::vector<double> values;
  for (const TransferSample& sample : row.rounds) {
    values.push_back(value(sample));
  }
  return values;
}

bool Verified(const RowSamples& row) {
  const auto verified = [](const TransferSample& sample) { return sample.verified; };
  return row.first.has_value() && row.first->verified && !row.rounds.empty() &&
         std::all_of(row.rounds.begin(), row.rounds.end(), verified);
}

// What the report says about one row; every figure is a median over the rounds.
struct Summary {
  Range rate;  // GB/s
  double posting_fraction = 0;
  double sender_cpu = 0;    // s per GB
  double receiver_cpu = 0;  // s per GB
  double first_rate = 0;    // GB/s
};

Summary Summarize(const TransferReport& report, const RowSamples& row) {
  const double gigabytes = static_cast<double>(report.shape.bytes()) / kGiga;
  const auto rate = [&](const TransferSample& sample) { return gigabytes / sample.seconds; };
  return {.rate = RangeOf(Collect(row, rate)),
          .posting_fraction = Median(
              Collect(row, [](const TransferSample& s) { return s.posting_seconds / s.seconds; })),
          .sender_cpu = Median(Collect(
              row, [&](const TransferSample& s) { return s.sender_cpu_seconds / gigabytes; })),
          .receiver_cpu = Median(Collect(
              row, [&](const TransferSample& s) { return s.receiver_cpu_seconds / gigabytes; })),
          .first_rate = row.first.has_value() ? rate(*row.first) : 0};
}

const RowSamples* Find(const TransferReport& report, const std::string& transport, Piece piece) {
  for (const RowSamples& row : report.rows) {
    if (row.transport == transport && row.piece == piece) {
      return &row;
    }
  }
  return nullptr;
}

// Rate of `row` over that of another transport with the same piece, round by round; empty when the
// other was not measured.
std::vector<double> RatiosTo(const TransferReport& report,
                             const RowSamples& row,
                             const std::string& other_name) {
  const RowSamples* other = Find(report, other_name, row.piece);
  std::vector<double> ratios;
  if (other != nullptr) {
    for (std::size_t i = 0; i < std::min(row.rounds.size(), other->rounds.size()); ++i) {
      ratios.push_back(other->rounds[i].seconds / row.rounds[i].seconds);
    }
  }
  return ratios;
}

Json ToJson(const TransferReport& report, const RowSamples& row) {
  const Summary summary = Summarize(report, row);
  Json json = {{"transport", row.transport},
               {"piece", ToString(row.piece)},
               {"gb_per_s", summary.rate.median}};
  if (!row.limit.empty()) {
    const RowSamples* limit = Find(report, row.limit, row.piece);
    const std::vector<double> ratios = RatiosTo(report, row, row.limit);
    const Range ratio = RangeOf(ratios);
    json["limit_gb_per_s"] =
        limit == nullptr ? Json() : Json(Summarize(report, *limit).rate.median);
    json["ratio_to_limit"] = ratios.empty() ? Json() : Json(ratio.median);
    json["ratio_to_limit_range"] = {ratio.least, ratio.most};
    json["limit"] = row.limit;
    for (const RowSamples& other : report.rows) {
      if (other.limit.empty() && other.piece == row.piece) {
        json["ratio_to"][other.transport] = Median(RatiosTo(report, row, other.transport));
      }
    }
    json["posting_fraction"] = summary.posting_fraction;
  }
  json["verified"] = Verified(row);
  json["gb_per_s_range"] = {summary.rate.least, summary.rate.most};
  json["first_gb_per_s"] = summary.first_rate;
  json["piece_bytes"] = report.shape.piece_bytes(row.piece);
  json["sender_cpu_s_per_gb"] = summary.sender_cpu;
  json["receiver_cpu_s_per_gb"] = summary.receiver_cpu;
  json["carrier"] = row.first.has_value() ? row.first->carrier : "";
  json["rounds"] = row.rounds.size();
  if (!row.failure.empty()) {
    json["failure"] = row.failure;
  }
  return json;
}

std::string ToLine(const TransferReport& report, const RowSamples& row) {
  const Summary summary = Summarize(report, row);
  std::string line = absl::StrFormat("%-18s %-5s %6.2f (%5.2f-%5.2f)  %6.2f   %5.3f / %5.3f",
                                     row.transport, ToString(row.piece), summary.rate.median,
                                     summary.rate.least, summary.rate.most, summary.first_rate,
                                     summary.sender_cpu, summary.receiver_cpu);
  if (!row.limit.empty()) {
    const std::vector<double> ratios = RatiosTo(report, row, row.limit);
    absl::StrAppendFormat(&line, "   %5.1f%%", 100 * summary.posting_fraction);
    if (!ratios.empty()) {
      const Range ratio = RangeOf(ratios);
      absl::StrAppendFormat(&line, "   %.2f (%.2f-%.2f) of %s", ratio.median, ratio.least,
                            ratio.most, row.limit);
    }
  }
  if (!row.failure.empty()) {
    absl::StrAppend(&line, "   failed: ", row.failure);
  } else if (!Verified(row)) {
    absl::StrAppend(&line, "   NOT VERIFIED");
  }
  return line + "\n";
}

}  // namespace

double Median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string ToJson(const TransferReport& report) {
  Json json = {{"results", Json::array()}, {"limits", Json::array()}};
  for (const RowSamples& row : report.rows) {
    json[row.limit.empty() ? "limits" : "results"].push_back(ToJson(report, row));
  }
  json["blocks"] = report.shape.blocks;
  json["layers"] = report.shape.layers;
  json["bytes"] = report.shape.bytes();
  json["machine"] = report.machine;
  json["network"] = report.network;
  json["congestion_control"] = report.congestion_control;
  json["pages"] = report.pages;
  json["seconds"] = report.seconds;
  return json.dump(2) + "\n";
}

std::string ToTable(const TransferReport& report) {
  std::string text =
      absl::StrFormat("%d blocks of %d layers of %d bytes, %.1f MB a transfer\n",
                      report.shape.blocks, report.shape.layers, report.shape.layer_bytes,
                      static_cast<double>(report.shape.bytes()) / 1e6);
  absl::StrAppend(&text, "machine: ", report.machine, "\nnetwork: ", report.network,
                  "; congestion control seen: ", report.congestion_control,
                  "\npages: ", report.pages, "\n\n");
  absl::StrAppend(&text,
                  "transport          piece  GB/s (least-most)   first   CPU s/GB sent/recv  "
                  "posting  of the limit\n");
  for (const RowSamples& row : report.rows) {
    absl::StrAppend(&text, ToLine(report, row));
  }
  return text;
}

bool IsComplete(const TransferReport& report) {
  return !report.rows.empty() &&
         std::all_of(report.rows.begin(), report.rows.end(),
                     [](const RowSamples& row) { return row.failure.empty() && Verified(row); });
}

}  // namespace baton
