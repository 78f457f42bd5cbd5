#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/commands.h"
#include "planner/prefix_slots.h"

namespace baton {

// What several commands share. Pure; thread-safe.

inline constexpr int kRunningStreams[] = {0, 1, 2, 4, 8, 16};

// "first-in", "least-recent" or "random". REQUIRES: one of these.
Eviction ParseEviction(const std::string& name);

// The transport that was asked for. INVALID_ARGUMENT when the file has none, or none of that name.
absl::StatusOr<const TransportRate*> ChooseTransport(const Measured& measured);

// Measured beside predicted, row by row, and a note with the medians.
void AddErrors(const CostModel& model, Report& report);

// A length in tokens, or "never".
Cell Length(std::optional<int> tokens);

}  // namespace baton
