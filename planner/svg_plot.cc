#include "planner/svg_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace baton {
namespace {

constexpr double kWidth = 860;
constexpr double kHeight = 500;
constexpr double kLeft = 80;
constexpr double kRight = 620;  // the legend is right of it
constexpr double kTop = 56;
constexpr double kBottom = 430;
// Distinct in hue and in lightness, so that they can be told apart without colour as well.
constexpr std::array<const char*, 8> kColours = {"#1b6ca8", "#d1495b", "#2e8b57", "#b8860b",
                                                 "#6a4c93", "#13868e", "#8c564b", "#555555"};
constexpr std::array<const char*, 4> kDashes = {"", "7,4", "2,3", "9,3,2,3"};

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string Tick(double value) {
  const double size = std::abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) {
    return absl::StrReplaceAll(absl::StrFormat("%.0e", value), {{"e+0", "e"}, {"e-0", "e-"}});
  }
  return absl::StrFormat("%g", std::round(value * 1e6) / 1e6);
}

// One axis: what part of the numbers it shows, and where they lie on the page.
class Axis {
 public:
  Axis(bool logarithmic, double from, double to) : log_(logarithmic), from_(from), to_(to) {}

  bool Shows(double value) const { return std::isfinite(value) && (!log_ || value > 0); }
  void Include(double value) {
    if (Shows(value)) {
      low_ = empty_ ? value : std::min(low_, value);
      high_ = empty_ ? value : std::max(high_, value);
      empty_ = false;
    }
  }

  // Ends at round numbers. A linear axis shows 0 unless the values are far from it.
  void Round() {
    if (empty_) {
      low_ = log_ ? 1 : 0;
      high_ = 10;
    }
    if (log_) {
      low_ = std::pow(10, std::floor(std::log10(low_) + 1e-9));
      high_ = std::pow(10, std::ceil(std::log10(high_) - 1e-9));
      high_ = high_ > low_ ? high_ : low_ * 10;
      return;
    }
    if (low_ > 0 && low_ < 0.6 * high_) {
      low_ = 0;
    }
    if (high_ - low_ < 1e-12 * std::max(std::abs(high_), 1e-9)) {
      high_ = low_ + std::max(std::abs(low_), 1.0);
    }
    const double raw = (high_ - low_) / 6;
    const double power = std::pow(10, std::floor(std::log10(raw)));
    const double digit = raw / power;
    step_ = power * (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10);
    low_ = std::floor(low_ / step_ + 1e-9) * step_;
    high_ = std::ceil(high_ / step_ - 1e-9) * step_;
  }

  // Whether the value lies inside, not at an end.
  bool Crosses(double value) const { return !log_ && low_ < value && value < high_; }

  double Place(double value) const {
    const double share = log_ ? std::log10(value / low_) / std::log10(high_ / low_)
                              : (value - low_) / (high_ - low_);
    return from_ + share * (to_ - from_);
  }

  std::vector<double> Ticks() const {
    std::vector<double> ticks;
    if (log_) {
      const bool few = high_ / low_ < 1e3;
      for (double decade = low_; decade <= high_ * (1 + 1e-9); decade *= 10) {
        for (const double digit : {1.0, 2.0, 5.0}) {
          if ((digit == 1 || few) && decade * digit <= high_ * (1 + 1e-9)) {
            ticks.push_back(decade * digit);
          }
        }
      }
      return ticks;
    }
    for (int i = 0; low_ + i * step_ <= high_ + step_ * 1e-6; ++i) {
      ticks.push_back(low_ + i * step_);
    }
    return ticks;
  }

 private:
  bool log_;
  double from_;  // on the page, of low_
  double to_;    // of high_
  double low_ = 0;
  double high_ = 0;
  double step_ = 1;
  bool empty_ = true;
};

void AppendLine(double x1, double y1, double x2, double y2, const char* style, std::string& out) {
  absl::StrAppendFormat(&out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1,
                        y1, x2, y2, style);
}

void AppendText(double x, double y, const char* style, const std::string& text, std::string& out) {
  absl::StrAppendFormat(&out, "<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y, style,
                        Escape(text));
}

void AppendAxes(const Plot& plot, const Axis& x, const Axis& y, std::string& out) {
  for (const double tick : x.Ticks()) {
    AppendLine(x.Place(tick), kTop, x.Place(tick), kBottom, "stroke=\"#e4e4e4\"", out);
    AppendText(x.Place(tick), kBottom + 18, "text-anchor=\"middle\"", Tick(tick), out);
  }
  for (const double tick : y.Ticks()) {
    AppendLine(kLeft, y.Place(tick), kRight, y.Place(tick), "stroke=\"#e4e4e4\"", out);
    AppendText(kLeft - 8, y.Place(tick) + 4, "text-anchor=\"end\"", Tick(tick), out);
  }
  if (y.Crosses(0)) {
    AppendLine(kLeft, y.Place(0), kRight, y.Place(0), "stroke=\"#888888\"", out);
  }
  AppendLine(kLeft, kBottom, kRight, kBottom, "stroke=\"#333333\"", out);
  AppendLine(kLeft, kTop, kLeft, kBottom, "stroke=\"#333333\"", out);
  AppendText(kLeft, 30, "font-size=\"16\" font-weight=\"bold\"", plot.title, out);
  AppendText((kLeft + kRight) / 2, kBottom + 44, "text-anchor=\"middle\"", plot.x_label, out);
  absl::StrAppendFormat(
      &out, "<text transform=\"translate(22 %.1f) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
      (kTop + kBottom) / 2, Escape(plot.y_label));
}

const char* Colour(std::size_t index) {
  return kColours[index % kColours.size()];
}

std::string OpenDocument(double height) {
  return absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
      "height=\"%.0f\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#222222\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
      kWidth, height, kWidth, height);
}

double LegendRow(std::size_t index) {
  return kTop + 12 + 22 * static_cast<double>(index);
}

void AppendEvents(const Plot& plot, const Axis& x, std::string& out) {
  constexpr const char* kStyle = "stroke=\"#e69f00\" stroke-width=\"1.5\"";
  for (const double event : plot.events_x) {
    AppendLine(x.Place(event), kTop, x.Place(event), kBottom, kStyle, out);
  }
  if (!plot.events_x.empty()) {
    const double row = LegendRow(plot.lines.size());
    AppendLine(kRight + 16, row, kRight + 46, row, kStyle, out);
    AppendText(kRight + 54, row + 4, "", plot.event, out);
  }
}

void AppendDots(
    const PlotLine& line, std::size_t index, const Axis& x, const Axis& y, std::string& out) {
  const auto dot = [&](double at_x, double at_y) {
    absl::StrAppendFormat(
        &out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.2\" fill=\"%s\" fill-opacity=\"0.7\"/>\n",
        at_x, at_y, Colour(index));
  };
  for (const PlotPoint& point : line.points) {
    if (x.Shows(point.x) && y.Shows(point.y)) {
      dot(x.Place(point.x), y.Place(point.y));
    }
  }
  dot(kRight + 31, LegendRow(index));
  AppendText(kRight + 54, LegendRow(index) + 4, "", line.name, out);
}

void AppendCurve(
    const PlotLine& line, std::size_t index, const Axis& x, const Axis& y, std::string& out) {
  const std::string stroke =
      absl::StrFormat("stroke=\"%s\" stroke-width=\"2\" fill=\"none\" stroke-dasharray=\"%s\"",
                      Colour(index), kDashes[index % kDashes.size()]);
  std::string path;
  std::string dots;
  for (const PlotPoint& point : line.points) {
    if (!x.Shows(point.x) || !y.Shows(point.y)) {
      continue;
    }
    absl::StrAppendFormat(&path, "%s%.1f %.1f", path.empty() ? "M" : " L", x.Place(point.x),
                          y.Place(point.y));
    absl::StrAppendFormat(&dots, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
                          x.Place(point.x), y.Place(point.y), Colour(index));
  }
  absl::StrAppend(&out, "<path d=\"", path, "\" ", stroke, "/>\n");
  constexpr std::size_t kMostDots = 40;
  if (line.points.size() <= kMostDots) {
    absl::StrAppend(&out, dots);
  }
  const double row = LegendRow(index);
  AppendLine(kRight + 16, row, kRight + 46, row, stroke.c_str(), out);
  AppendText(kRight + 54, row + 4, "", line.name, out);
}

}  // namespace

std::string FormatSvg(const Plot& plot) {
  Axis x(plot.log_x, kLeft, kRight);
  Axis y(plot.log_y, kBottom, kTop);
  for (const PlotLine& line : plot.lines) {
    for (const PlotPoint& point : line.points) {
      if (x.Shows(point.x) && y.Shows(point.y)) {
        x.Include(point.x);
        y.Include(point.y);
      }
    }
  }
  if (plot.marked_x.has_value()) {
    x.Include(*plot.marked_x);
  }
  for (const double event : plot.events_x) {
    x.Include(event);
  }
  x.Round();
  y.Round();
  std::string out = OpenDocument(kHeight);
  AppendAxes(plot, x, y, out);
  if (plot.marked_x.has_value()) {
    const double place = x.Place(*plot.marked_x);
    AppendLine(place, kTop, place, kBottom, "stroke=\"#222222\" stroke-dasharray=\"3,3\"", out);
    AppendText(place + 5, kTop + 14, "", plot.mark, out);
  }
  AppendEvents(plot, x, out);
  for (std::size_t i = 0; i < plot.lines.size(); ++i) {
    (plot.lines[i].dots ? AppendDots : AppendCurve)(plot.lines[i], i, x, y, out);
  }
  return out + "</svg>\n";
}

std::string FormatBars(const BarPlot& plot) {
  constexpr double kNamesEnd = 230;
  constexpr double kBarHeight = 24;
  constexpr double kBarEvery = 38;
  Axis x(/*logarithmic=*/false, kNamesEnd, kRight);
  x.Include(0);
  for (const BarPlot::Bar& bar : plot.bars) {
    x.Include(std::accumulate(bar.parts.begin(), bar.parts.end(), 0.0));
  }
  x.Round();
  const double bottom =
      kTop + kBarEvery * static_cast<double>(std::max(plot.bars.size(), plot.parts.size()));
  std::string out = OpenDocument(bottom + 64);
  AppendText(24, 30, "font-size=\"16\" font-weight=\"bold\"", plot.title, out);
  for (const double tick : x.Ticks()) {
    AppendLine(x.Place(tick), kTop, x.Place(tick), bottom, "stroke=\"#e4e4e4\"", out);
    AppendText(x.Place(tick), bottom + 18, "text-anchor=\"middle\"", Tick(tick), out);
  }
  AppendText((kNamesEnd + kRight) / 2, bottom + 44, "text-anchor=\"middle\"", plot.x_label, out);
  const auto box = [&out](double left, double top, double width, double height, std::size_t part) {
    absl::StrAppendFormat(
        &out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", left,
        top, width, height, Colour(part));
  };
  for (std::size_t i = 0; i < plot.bars.size(); ++i) {
    const double top = kTop + 8 + kBarEvery * static_cast<double>(i);
    AppendText(kNamesEnd - 8, top + kBarHeight / 2 + 4, "text-anchor=\"end\"", plot.bars[i].name,
               out);
    double sum = 0;
    for (std::size_t part = 0; part < plot.bars[i].parts.size(); ++part) {
      const double value = plot.bars[i].parts[part];
      box(x.Place(sum), top, x.Place(sum + value) - x.Place(sum), kBarHeight, part);
      sum += value;
    }
  }
  for (std::size_t part = 0; part < plot.parts.size(); ++part) {
    box(kRight + 16, LegendRow(part) - 8, 16, 14, part);
    AppendText(kRight + 40, LegendRow(part) + 4, "", plot.parts[part], out);
  }
  return out + "</svg>\n";
}

}  // namespace baton
