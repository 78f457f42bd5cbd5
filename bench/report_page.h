#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bench/load_report.h"
#include "planner/svg_plot.h"

namespace baton {

// An HTML document with nothing from elsewhere: no scripts, no fonts, plots as SVG in the text.
//
// Not thread-safe.
class ReportPage {
 public:
  explicit ReportPage(const std::string& title);

  void Heading(const std::string& text);
  void Paragraph(const std::string& text);
  void Verdict(const std::string& text);
  void Add(const Plot& plot);
  void Add(const BarPlot& plot);
  // The first row is the heading.
  void Table(const std::vector<std::vector<std::string>>& rows);

  std::string Finish();  // once

 private:
  std::string html_;
};

// Values with a name, and which runs they are of: what one plot shows side by side.
struct NamedRun {
  std::string name;
  std::vector<const LoadRun*> runs;  // not null; put together
  Duration warm_up{};
};

// Share of the values that are at most x, in milliseconds, on a logarithmic axis.
Plot FirstTokenCdf(const std::vector<NamedRun>& runs, const std::string& kind);
Plot InterTokenCdf(const std::vector<NamedRun>& runs, const std::string& kind);
// Every gap between tokens of requests of `kind`, when it ended; with a line where each request of
// `event_kind` was due (of the first run). One run of each name.
Plot GapTimeline(const std::vector<NamedRun>& runs,
                 const std::string& kind,
                 const std::string& event_kind);
// Medians of what the servers say that the time to the first token went into, by request kind.
BarPlot FirstTokenParts(const std::vector<NamedRun>& runs);

// The report of one run.
std::string LoadPage(const LoadRun& run, const LoadSettings& settings);

}  // namespace baton
