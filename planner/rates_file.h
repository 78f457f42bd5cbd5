#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "planner/rates.h"

namespace baton {

// The text of a rates file: JSON, nested no deeper than 8, with the members that planner/README.md
// lists. A name that is not one of them, or is there twice, is an error, so that a misspelt one is
// not overlooked. What `baton status --json` has printed of a router will do too: its `rates` are
// taken.
// Pure; thread-safe.

// INVALID_ARGUMENT "<name>: <field>: <problem>"; `name` is what the text is called, as a path.
absl::StatusOr<MeasuredRates> ParseRates(const std::string& name, std::string_view text);

// The text that ParseRates reads back to the same rates. REQUIRES: valid rates.
std::string FormatRates(const MeasuredRates& rates);

}  // namespace baton
