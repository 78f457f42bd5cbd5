#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// RETURN_IF_ERROR(expr): evaluates an absl::Status expression once and returns it from the
// enclosing function when it is not OK.
#define RETURN_IF_ERROR(expr)                                     \
  do {                                                            \
    if (absl::Status baton_status = (expr); !baton_status.ok()) { \
      return baton_status;                                        \
    }                                                             \
  } while (false)

// ASSIGN_OR_RETURN(lhs, expr): evaluates an absl::StatusOr expression once; assigns its value to
// `lhs` (which may be a declaration) or returns its status from the enclosing function.
#define ASSIGN_OR_RETURN(lhs, expr) \
  BATON_ASSIGN_OR_RETURN_IMPL(BATON_CONCAT(baton_status_or_, __LINE__), lhs, expr)

#define BATON_ASSIGN_OR_RETURN_IMPL(status_or, lhs, expr) \
  auto status_or = (expr);                                \
  if (!status_or.ok()) {                                  \
    return std::move(status_or).status();                 \
  }                                                       \
  lhs = *std::move(status_or)

#define BATON_CONCAT_INNER(a, b) a##b
#define BATON_CONCAT(a, b) BATON_CONCAT_INNER(a, b)
