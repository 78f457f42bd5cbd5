#pragma once

#include <string>
#include <vector>

namespace baton {

using Cells = std::vector<std::string>;

// Columns as wide as their widest cell, two spaces before each, a line a row.
std::string Table(const std::vector<Cells>& rows);

// An enum's name without what all names of the enum begin with.
std::string Short(const std::string& name, const std::string& prefix);

}  // namespace baton
