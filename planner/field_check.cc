#include "planner/field_check.h"

#include "absl/strings/str_cat.h"

namespace baton {

absl::Status CheckRange(const std::string& field, double value, double low, double high) {
  if (value >= low && value <= high) {  // false for NaN
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", value, " is not a number from ", low, " to ", high));
}

absl::Status CheckPositive(const std::string& field, double value, double high) {
  if (value > 0 && value <= high) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", value, " is not a number above 0, up to ", high));
}

}  // namespace baton
