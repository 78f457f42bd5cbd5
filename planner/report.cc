#include "planner/report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

struct TextOfCell {
  std::string operator()(std::monostate) const { return "-"; }
  std::string operator()(const Number& number) const { return FormatNumber(number); }
  std::string operator()(bool yes) const { return yes ? "yes" : "no"; }
  std::string operator()(const std::string& text) const { return text; }
};

struct JsonOfCell {
  Json operator()(std::monostate) const { return nullptr; }
  Json operator()(const Number& number) const {
    if (!std::isfinite(number.value)) {
      return nullptr;
    }
    // Whole numbers without a point.
    const bool whole = std::abs(number.value) < 1e15 && std::floor(number.value) == number.value;
    return whole ? Json(static_cast<std::int64_t>(number.value)) : Json(number.value);
  }
  Json operator()(bool yes) const { return yes; }
  Json operator()(const std::string& text) const { return text; }
};

bool IsText(const Cell& cell) {
  return std::holds_alternative<std::string>(cell);
}

void AppendRow(const std::vector<std::string>& cells,
               const std::vector<std::size_t>& widths,
               const std::vector<bool>& left,
               std::string& out) {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::string padding(widths[i] - cells[i].size(), ' ');
    absl::StrAppend(&line, "  ", left[i] ? cells[i] + padding : padding + cells[i]);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  absl::StrAppend(&out, line, "\n");
}

void AppendTable(const Table& table, std::string& out) {
  std::vector<std::vector<std::string>> lines(1);
  std::vector<bool> left;
  for (const Column& column : table.columns) {
    lines[0].push_back(column.heading);
    left.push_back(false);
  }
  for (const std::vector<Cell>& row : table.rows) {
    BATON_CHECK(row.size() == table.columns.size());
    std::vector<std::string>& line = lines.emplace_back();
    for (std::size_t i = 0; i < row.size(); ++i) {
      line.push_back(std::visit(TextOfCell(), row[i]));
      left[i] = left[i] || IsText(row[i]);
    }
  }
  std::vector<std::size_t> widths(table.columns.size(), 0);
  for (const std::vector<std::string>& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      widths[i] = std::max(widths[i], line[i].size());
    }
  }
  absl::StrAppend(&out, table.heading, "\n");
  for (const std::vector<std::string>& line : lines) {
    AppendRow(line, widths, left, out);
  }
  absl::StrAppend(&out, "\n");
}

}  // namespace

std::string FormatNumber(const Number& number) {
  if (!std::isfinite(number.value)) {
    return "-";
  }
  std::string text = absl::StrFormat("%.*f", number.decimals, number.value);
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') {
      text.pop_back();
    }
  }
  return text == "-0" ? "0" : text;
}

std::string FormatText(const Report& report) {
  std::string out;
  for (const Table& table : report.tables) {
    AppendTable(table, out);
  }
  absl::StrAppend(&out, "course: ", report.claim, "\n");
  for (const std::string& note : report.notes) {
    absl::StrAppend(&out, "note: ", note, "\n");
  }
  return out;
}

std::string FormatJson(const Report& report) {
  Json root = {{"command", report.command},
               {"mode", report.mode},
               {"claim", report.claim},
               {"notes", report.notes}};
  for (const Table& table : report.tables) {
    Json& rows = root[table.key] = Json::array();
    for (const std::vector<Cell>& row : table.rows) {
      Json& object = rows.emplace_back(Json::object());
      for (std::size_t i = 0; i < row.size(); ++i) {
        object[table.columns[i].key] = std::visit(JsonOfCell(), row[i]);
      }
    }
  }
  return root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace baton
