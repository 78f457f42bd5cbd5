#include "router/admission_queue.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace baton {
namespace {

// What a tenant may spend a turn. Small against a usual request, so that turns follow the tokens
// rather than the requests.
constexpr std::uint64_t kQuantumTokens = 256;

}  // namespace

void AdmissionQueue::Push(Entry entry) {
  Level& level = levels_[entry.priority];
  auto found = level.lines.find(entry.tenant);
  if (found == level.lines.end()) {
    // With what it may spend when its first turn comes.
    level.round.push_back({.tenant = entry.tenant, .deficit_tokens = kQuantumTokens});
    found = level.lines.emplace(entry.tenant, std::prev(level.round.end())).first;
  }
  found->second->items.push_back({.number = entry.number, .cost_tokens = entry.cost_tokens});
  places_[entry.number] = {.priority = entry.priority, .tenant = std::move(entry.tenant)};
}

std::optional<std::uint64_t> AdmissionQueue::Front() {
  if (levels_.empty()) {
    return std::nullopt;
  }
  std::list<Line>& round = levels_.begin()->second.round;
  const auto missing = [](const Line& line) {
    const std::uint64_t cost = line.items.front().cost_tokens;
    return cost > line.deficit_tokens ? cost - line.deficit_tokens : 0;
  };
  // Rounds in which nobody's turn would come are taken at once.
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const Line& line : round) {
    least = std::min(least, missing(line));
  }
  const std::uint64_t idle_rounds = least == 0 ? 0 : (least - 1) / kQuantumTokens;
  for (Line& line : round) {
    line.deficit_tokens += idle_rounds * kQuantumTokens;
  }
  while (missing(round.front()) > 0) {
    round.front().deficit_tokens += kQuantumTokens;
    round.splice(round.end(), round, round.begin());
  }
  return round.front().items.front().number;
}

bool AdmissionQueue::Erase(std::uint64_t number) {
  const auto place = places_.find(number);
  if (place == places_.end()) {
    return false;
  }
  const auto level = levels_.find(place->second.priority);
  const auto line = level->second.lines.find(place->second.tenant);
  std::deque<Item>& items = line->second->items;
  const auto item = std::find_if(items.begin(), items.end(),
                                 [number](const Item& one) { return one.number == number; });
  // Whoever leaves from the front has had its turn; one further back has spent nothing.
  if (item == items.begin()) {
    std::uint64_t& deficit = line->second->deficit_tokens;
    deficit -= std::min(deficit, item->cost_tokens);
  }
  items.erase(item);
  if (items.empty()) {
    level->second.round.erase(line->second);
    level->second.lines.erase(line);
  }
  if (level->second.round.empty()) {
    levels_.erase(level);
  }
  places_.erase(place);
  return true;
}

std::optional<std::uint64_t> AdmissionQueue::Displaced(const std::string& tenant,
                                                       std::int32_t priority) const {
  if (levels_.empty() || levels_.rbegin()->first < priority) {
    return std::nullopt;
  }
  const auto& [least_urgent, level] = *levels_.rbegin();
  const auto longest = std::max_element(
      level.round.begin(), level.round.end(),
      [](const Line& a, const Line& b) { return a.items.size() < b.items.size(); });
  if (least_urgent == priority) {
    const auto own = level.lines.find(tenant);
    const std::size_t own_entries = own == level.lines.end() ? 0 : own->second->items.size();
    if (longest->items.size() < own_entries + 2) {
      return std::nullopt;
    }
  }
  return longest->items.back().number;
}

}  // namespace baton
