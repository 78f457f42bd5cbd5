#pragma once

#include <string>

#include "bench/compare_result.h"

namespace baton {

// The whole comparison as one HTML document: verdict, tables, plots, method. Pure; thread-safe.
std::string ComparePage(const CompareResult& result);

}  // namespace baton
