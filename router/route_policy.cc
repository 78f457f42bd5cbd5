#include "router/route_policy.h"

#include "router/policy_rules.h"

namespace baton {

std::optional<RoutePolicyKind> ParseRoutePolicyKind(std::string_view name) {
  if (name == "round-robin") {
    return RoutePolicyKind::kRoundRobin;
  }
  if (name == "least-loaded") {
    return RoutePolicyKind::kLeastLoaded;
  }
  if (name == "prefix") {
    return RoutePolicyKind::kPrefix;
  }
  if (name == "session") {
    return RoutePolicyKind::kSession;
  }
  return std::nullopt;
}

std::unique_ptr<RoutePolicy> MakeRoutePolicy(RoutePolicyKind kind) {
  switch (kind) {
    case RoutePolicyKind::kRoundRobin:
      return MakeRoundRobinPolicy();
    case RoutePolicyKind::kLeastLoaded:
      return MakeLeastLoadedPolicy();
    case RoutePolicyKind::kPrefix:
      return MakePrefixPolicy();
    case RoutePolicyKind::kSession:
      return MakeSessionPolicy();
  }
  return nullptr;
}

}  // namespace baton
