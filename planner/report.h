#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "planner/svg_plot.h"

namespace baton {

// What a command of baton-plan has to say, before it is known whether as text, JSON or a plot.
// Plain values; the functions are pure and thread-safe.

// A number is shown with at most so many decimals, without zeros at the end; JSON has all digits.
// Infinite or NaN: "-" in text, null in JSON; so is monostate, a value that does not exist.
struct Number {
  double value = 0;
  int decimals = 4;
};
using Cell = std::variant<std::monostate, Number, bool, std::string>;

inline Cell Num(double value, int decimals = 4) {
  return Number{value, decimals};
}

struct Column {
  std::string key;      // in JSON, with the unit: "total_ms"
  std::string heading;  // in text: "total, ms"
};

struct Table {
  std::string key;      // in JSON
  std::string heading;  // in text
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;  // as many cells as columns
};

struct Report {
  std::string command;
  std::string mode;   // "paper" or "measured"
  std::string claim;  // one line: which statement of the course this confirms or contradicts
  std::vector<Table> tables;
  std::vector<std::string> notes;  // a line each
  Plot plot;
};

std::string FormatNumber(const Number& number);
// Tables with aligned columns, then the claim and the notes.
std::string FormatText(const Report& report);
// Exactly one object and a line end: command, mode, claim, notes, and for each table an array of
// objects.
std::string FormatJson(const Report& report);

}  // namespace baton
