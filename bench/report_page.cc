#include "bench/report_page.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace baton {
namespace {

constexpr std::size_t kCdfPoints = 200;
constexpr std::size_t kTimelineDots = 6000;  // of one plot line; more cannot be told apart

// Tokens that come together after a stall have next to no time between them; on a logarithmic axis
// they would take most of the room.
constexpr double kLeastGapMs = 5;

constexpr const char* kStyle =
    "body{font:15px/1.5 sans-serif;color:#222;max-width:900px;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;margin:1em 0;font-size:13px}"
    "td,th{border:1px solid #ccc;padding:3px 8px;text-align:right}"
    "td:first-child,th:first-child{text-align:left}th{background:#f2f2f2}"
    ".verdict{background:#eef4fa;border-left:4px solid #1b6ca8;padding:.6em 1em;font-size:17px}"
    "svg{max-width:100%;height:auto;margin:.5em 0}";

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

PlotLine CdfLine(const std::string& name, std::vector<double> values) {
  PlotLine line{.name = name};
  std::sort(values.begin(), values.end());
  const std::size_t points = std::min(kCdfPoints, values.size());
  for (std::size_t i = 0; i < points; ++i) {
    // Denser at the end, where the stalls are: the share left over falls evenly on a curve.
    const double left =
        1 - static_cast<double>(i) / static_cast<double>(std::max<std::size_t>(points - 1, 1));
    const double share = 1 - left * left;
    line.points.push_back({.x = Percentile(values, share), .y = share});
  }
  return line;
}

// Calls `visit` with every answered record of `kind` (empty: all) that is due after the warm-up.
template <typename Visit>
void ForEachRecord(const NamedRun& named, const std::string& kind, const Visit& visit) {
  for (const LoadRun* run : named.runs) {
    for (const RequestRecord& record : run->records) {
      if (record.ok() && record.scheduled >= named.warm_up &&
          (kind.empty() || record.kind == kind)) {
        visit(record);
      }
    }
  }
}

template <typename Append>
Plot Cdf(std::string title,
         std::string x_label,
         const std::vector<NamedRun>& runs,
         const std::string& kind,
         const Append& append) {
  Plot plot{.title = std::move(title),
            .x_label = std::move(x_label),
            .y_label = "share of all",
            .log_x = true};
  for (const NamedRun& named : runs) {
    std::vector<double> values;
    ForEachRecord(named, kind, [&](const RequestRecord& record) { append(record, values); });
    plot.lines.push_back(CdfLine(named.name, std::move(values)));
  }
  return plot;
}

std::string OfKind(const std::string& kind) {
  return kind.empty() ? std::string() : absl::StrCat(" of \"", kind, "\" requests");
}

std::set<std::string> KindsOf(const std::vector<NamedRun>& runs) {
  std::set<std::string> kinds;
  for (const NamedRun& named : runs) {
    ForEachRecord(named, "", [&](const RequestRecord& record) { kinds.insert(record.kind); });
  }
  return kinds;
}

// Until the first token, in the order in which it is spent. What the server does not name, the
// first step among it, is what is left of the whole.
std::vector<double> FirstTokenPartsOf(const std::vector<const RequestRecord*>& records) {
  const auto median = [&records](const auto& value) {
    std::vector<double> values;
    for (const RequestRecord* record : records) {
      values.push_back(value(*record));
    }
    return Describe(std::move(values)).p50;
  };
  const double route =
      median([](const RequestRecord& r) { return r.server.tokenize_ms + r.server.route_ms; });
  const double queue = median([](const RequestRecord& r) { return r.server.queue_ms; });
  const double prefill = median([](const RequestRecord& r) { return r.server.prefill_ms; });
  const double whole = median([](const RequestRecord& r) { return FirstTokenMs(r); });
  const double second = median([](const RequestRecord& r) { return r.server.exposed_transfer_ms; });
  const double first_step = median([](const RequestRecord& r) {
    return r.token_times.size() < 2
               ? 0.0
               : std::max(0.0, InterTokenMs(r).front() - r.server.exposed_transfer_ms);
  });
  return {route,  queue,     prefill, std::max(0.0, whole - route - queue - prefill),
          second, first_step};
}

}  // namespace

ReportPage::ReportPage(const std::string& title) {
  html_ = absl::StrCat("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>",
                       Escape(title), "</title><style>", kStyle, "</style></head><body>\n<h1>",
                       Escape(title), "</h1>\n");
}

void ReportPage::Heading(const std::string& text) {
  absl::StrAppend(&html_, "<h2>", Escape(text), "</h2>\n");
}

void ReportPage::Paragraph(const std::string& text) {
  absl::StrAppend(&html_, "<p>", Escape(text), "</p>\n");
}

void ReportPage::Verdict(const std::string& text) {
  absl::StrAppend(&html_, "<p class=\"verdict\">", Escape(text), "</p>\n");
}

void ReportPage::Add(const Plot& plot) {
  html_ += FormatSvg(plot);
}

void ReportPage::Add(const BarPlot& plot) {
  html_ += FormatBars(plot);
}

void ReportPage::Table(const std::vector<std::vector<std::string>>& rows) {
  html_ += "<table>\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const char* cell = i == 0 ? "th" : "td";
    html_ += "<tr>";
    for (const std::string& text : rows[i]) {
      absl::StrAppend(&html_, "<", cell, ">", Escape(text), "</", cell, ">");
    }
    html_ += "</tr>\n";
  }
  html_ += "</table>\n";
}

std::string ReportPage::Finish() {
  return std::move(html_) + "</body></html>\n";
}

Plot FirstTokenCdf(const std::vector<NamedRun>& runs, const std::string& kind) {
  return Cdf("Time to first token" + OfKind(kind), "time to first token, ms", runs, kind,
             [](const RequestRecord& record, std::vector<double>& values) {
               values.push_back(FirstTokenMs(record));
             });
}

Plot InterTokenCdf(const std::vector<NamedRun>& runs, const std::string& kind) {
  return Cdf(
      "Time between tokens" + OfKind(kind),
      absl::StrFormat("time between tokens, ms (%g and less as %g)", kLeastGapMs, kLeastGapMs),
      runs, kind, [](const RequestRecord& record, std::vector<double>& values) {
        for (const double gap : InterTokenMs(record)) {
          values.push_back(std::max(gap, kLeastGapMs));
        }
      });
}

Plot GapTimeline(const std::vector<NamedRun>& runs,
                 const std::string& kind,
                 const std::string& event_kind) {
  Plot plot{.title = "When streams stand still: every gap between tokens" + OfKind(kind),
            .x_label = "time since the start of the run, s",
            .y_label = absl::StrFormat("gap, ms (%g and less as %g)", kLeastGapMs, kLeastGapMs),
            .log_y = true,
            .event = absl::StrCat("a \"", event_kind, "\" request is due")};
  const auto seconds = [](Duration time) { return std::chrono::duration<double>(time).count(); };
  for (const NamedRun& named : runs) {
    PlotLine line{.name = named.name, .dots = true};
    ForEachRecord(named, kind, [&](const RequestRecord& record) {
      const std::vector<double> gaps = InterTokenMs(record);
      for (std::size_t i = 0; i < gaps.size() && line.points.size() < kTimelineDots; ++i) {
        line.points.push_back(
            {.x = seconds(record.token_times[i + 1]), .y = std::max(gaps[i], kLeastGapMs)});
      }
    });
    plot.lines.push_back(std::move(line));
  }
  if (!runs.empty() && !event_kind.empty()) {
    ForEachRecord(runs.front(), event_kind, [&](const RequestRecord& record) {
      plot.events_x.push_back(seconds(record.scheduled));
    });
  }
  return plot;
}

BarPlot FirstTokenParts(const std::vector<NamedRun>& runs) {
  BarPlot plot{.title = "Where the time to the first and second token goes (medians)",
               .x_label = "ms",
               .parts = {"tokenize and route", "queue", "prefill", "network and rest",
                         "transfer left over", "first decode step"}};
  for (const std::string& kind : KindsOf(runs)) {
    for (const NamedRun& named : runs) {
      std::vector<const RequestRecord*> records;
      ForEachRecord(named, kind, [&](const RequestRecord& record) { records.push_back(&record); });
      plot.bars.push_back(
          {.name = absl::StrCat(kind, ", ", named.name), .parts = FirstTokenPartsOf(records)});
    }
  }
  return plot;
}

std::string LoadPage(const LoadRun& run, const LoadSettings& settings) {
  ReportPage page(absl::StrCat("Load of ", settings.workload, " on ", settings.server));
  const LoadSummary all = Summarize(run, settings.summary);
  page.Verdict(absl::StrFormat(
      "%.2f requests a second were answered (%d failed); %.1f%% got the first token within %.0f ms "
      "and 95%% of the others within %.0f ms of the one before: %.2f good requests a second.",
      all.per_second(static_cast<double>(all.completed())), all.failed, 100 * all.good_share(),
      settings.summary.limits.first_token_ms, settings.summary.limits.inter_token_ms,
      all.per_second(static_cast<double>(all.good))));
  std::vector<std::vector<std::string>> rows{{"requests", "number", "ttft p50 ms", "ttft p99 ms",
                                              "itl p50 ms", "itl p99 ms", "tokens/s out"}};
  for (const std::string& kind : KindsOf({{.name = "all", .runs = {&run}}})) {
    SummaryOptions options = settings.summary;
    options.kind = kind;
    const LoadSummary summary = Summarize(run, options);
    rows.push_back({kind, absl::StrCat(summary.requests),
                    absl::StrFormat("%.1f", summary.first_token_ms.p50),
                    absl::StrFormat("%.1f", summary.first_token_ms.p99),
                    absl::StrFormat("%.1f", summary.inter_token_ms.p50),
                    absl::StrFormat("%.1f", summary.inter_token_ms.p99),
                    absl::StrFormat("%.1f", summary.per_second(summary.output_tokens))});
  }
  page.Table(rows);
  const std::vector<NamedRun> named{
      {.name = settings.workload, .runs = {&run}, .warm_up = settings.summary.warm_up}};
  page.Add(FirstTokenCdf(named, ""));
  page.Add(InterTokenCdf(named, ""));
  page.Add(GapTimeline(named, "", all.requests > 0 && rows.size() > 2 ? "long" : ""));
  page.Add(FirstTokenParts(named));
  page.Paragraph(absl::StrCat("Made ", settings.date, " UTC, model ", settings.model, ", arrivals ",
                              settings.arrivals,
                              ". Latencies count from the time a request was due, not from when it "
                              "was sent."));
  return page.Finish();
}

}  // namespace baton
