#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace baton {

// The order in which requests that wait are admitted: by priority, lower first; within one
// priority fair between tenants by deficit round robin over tokens; within a tenant as they came.
//
// So a tenant that floods delays its own requests: with k tenants waiting, whoever asks for c
// tokens waits for about k * c tokens of others' work, however much these have queued.
//
// Not thread-safe.
class AdmissionQueue {
 public:
  struct Entry {
    std::uint64_t number = 0;  // of the caller's; unique
    std::string tenant;
    std::int32_t priority = 0;
    std::uint64_t cost_tokens = 0;  // of the prompt and most new ones
  };

  void Push(Entry entry);

  // The entry whose turn it is; the same until it is erased or a more urgent one comes. nullopt:
  // empty.
  std::optional<std::uint64_t> Front();

  // False when it is not here.
  bool Erase(std::uint64_t number);

  // The entry that should make room for a new one of this tenant and priority: of the least urgent
  // priority, the last one of the tenant with the most entries. nullopt when that would be no more
  // just: it is more urgent than the new one, or as urgent and its tenant has not at least two
  // entries more than the new one's.
  std::optional<std::uint64_t> Displaced(const std::string& tenant, std::int32_t priority) const;

  std::size_t size() const { return places_.size(); }
  bool empty() const { return places_.empty(); }

 private:
  struct Item {
    std::uint64_t number = 0;
    std::uint64_t cost_tokens = 0;
  };
  struct Line {  // of one tenant; never empty
    std::string tenant;
    std::deque<Item> items;
    std::uint64_t deficit_tokens = 0;  // what it may spend before the next one's turn
  };
  struct Level {            // of one priority; never empty
    std::list<Line> round;  // the first one's turn
    absl::flat_hash_map<std::string, std::list<Line>::iterator> lines;
  };
  struct Place {
    std::int32_t priority = 0;
    std::string tenant;
  };

  std::map<std::int32_t, Level> levels_;
  absl::flat_hash_map<std::uint64_t, Place> places_;
};

}  // namespace baton
