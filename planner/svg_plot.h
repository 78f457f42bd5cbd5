#pragma once

#include <optional>
#include <string>
#include <vector>

namespace baton {

// A plot of lines over one pair of axes. Plain values.
struct PlotPoint {
  double x = 0;
  double y = 0;
};

struct PlotLine {
  std::string name;
  std::vector<PlotPoint> points;  // x rises
  bool dots = false;              // each point alone, and no line
};

struct Plot {
  std::string title;
  std::string x_label;  // with the unit
  std::string y_label;
  bool log_x = false;  // all x above 0
  bool log_y = false;
  std::vector<PlotLine> lines;
  std::optional<double> marked_x;  // a vertical line
  std::string mark;                // what it says
  std::vector<double> events_x;    // faint vertical lines; `event` in the legend is their name
  std::string event;
};

// Bars of parts that add up, one below the other, from 0 on.
struct BarPlot {
  struct Bar {
    std::string name;
    std::vector<double> parts;  // as many as `parts` has names; none below 0
  };
  std::string title;
  std::string x_label;  // with the unit
  std::vector<std::string> parts;
  std::vector<Bar> bars;
};

// A self-contained SVG document: no scripts, styles, fonts or images from elsewhere. Points that
// are not finite, or not above 0 on a logarithmic axis, are left out. Pure; thread-safe.
std::string FormatSvg(const Plot& plot);
std::string FormatBars(const BarPlot& plot);

}  // namespace baton
