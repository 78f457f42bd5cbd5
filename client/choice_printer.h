#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <vector>

#include "baton/v1/completions.pb.h"

namespace baton {

// Prints the choices of one request one after the other as their increments come, in whatever order
// those of different choices come: the first open choice at once, what belongs to a later one when
// its turn has come. With more than one each has a heading. Log probabilities follow their text.
//
// Not thread-safe.
class ChoicePrinter {
 public:
  // `out` must outlive the printer. `dim`: headings in faint text.
  ChoicePrinter(std::ostream& out, std::size_t choices, bool dim);

  // Increments of choices beyond the number given are left out.
  void Add(const v1::Choice& increment);
  // No more will come: ends the line of a choice that was cut off.
  void Finish();

  const std::string& text(std::size_t choice) const { return choices_[choice].text(); }

 private:
  void Open();

  std::ostream& out_;
  const bool dim_;
  std::vector<v1::Choice> choices_;  // what has come
  std::size_t current_ = 0;          // being printed; those before are done
  bool opened_ = false;              // the current one
};

}  // namespace baton
