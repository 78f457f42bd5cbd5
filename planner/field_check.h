#pragma once

#include <string>

#include "absl/status/status.h"

namespace baton {

// INVALID_ARGUMENT "<field>: <value> is not a number from <low> to <high>" unless low <= value <=
// high; NaN never is. Thread-safe, as are the others.
absl::Status CheckRange(const std::string& field, double value, double low, double high);

// The same with an open lower end of 0: rates and sizes that something is divided by.
absl::Status CheckPositive(const std::string& field, double value, double high);

}  // namespace baton
