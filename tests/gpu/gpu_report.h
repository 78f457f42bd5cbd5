#pragma once

#include <string>

#include "bench/figure.h"
#include "bench/work_model.h"

namespace baton {

// One line of the table: time, tokens a second, bytes a second that must move and arithmetic a
// second with their shares of the ceilings, and how near the time is to the least that the ceilings
// allow.
std::string FormatRow(const Figure& figure,
                      const Work& work,
                      const Limits& ceilings,
                      double seconds);

}  // namespace baton
