#include "kvtransfer/transport_choice.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace baton {
namespace {

std::string Prefix(TransportKind kind) {
  return absl::StrCat(std::string(ToString(kind)), ":");
}

// Mapping needs messages of some kind, and takes any.
bool MayCarry(const TransportPolicy& policy, TransportKind messages) {
  return policy.Allows(messages) ||
         (policy.forced == TransportKind::kMapped && messages != TransportKind::kRdma);
}

}  // namespace

const std::string* TransportPolicy::WhyAbsent(TransportKind kind) const {
  const auto found = std::find_if(absent.begin(), absent.end(),
                                  [&](const auto& one) { return one.first == kind; });
  return found == absent.end() ? nullptr : &found->second;
}

std::string JoinAddresses(const std::vector<std::string>& addresses) {
  return absl::StrJoin(addresses, ",");
}

std::vector<Route> ParseAddresses(const std::string& addresses) {
  std::vector<Route> routes;
  for (const std::string& address :
       std::vector<std::string>(absl::StrSplit(addresses, ',', absl::SkipEmpty()))) {
    Route route{.kind = TransportKind::kTcp, .address = address};
    for (const TransportKind kind : {TransportKind::kRdma, TransportKind::kGrpc}) {
      route.kind = address.starts_with(Prefix(kind)) ? kind : route.kind;
    }
    routes.push_back(std::move(route));
  }
  return routes;
}

std::string HostPort(const std::string& address) {
  for (const TransportKind kind : {TransportKind::kRdma, TransportKind::kGrpc}) {
    if (address.starts_with(Prefix(kind))) {
      return address.substr(Prefix(kind).size());
    }
  }
  return address;
}

absl::StatusOr<std::vector<Route>> ChooseRoutes(const TransportPolicy& policy,
                                                const std::string& addresses) {
  std::vector<Route> routes;
  std::vector<std::string> offered;
  for (Route& route : ParseAddresses(addresses)) {
    offered.emplace_back(ToString(route.kind));
    if (MayCarry(policy, route.kind) && policy.WhyAbsent(route.kind) == nullptr) {
      routes.push_back(std::move(route));
    }
  }
  if (routes.empty()) {
    std::vector<std::string> lacking;
    for (const auto& [kind, why] : policy.absent) {
      lacking.push_back(absl::StrCat(std::string(ToString(kind)), " (", why, ")"));
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "transport: ",
        policy.forced ? absl::StrCat("only ", std::string(ToString(*policy.forced)), " is allowed")
                      : absl::StrCat("this process lacks ", absl::StrJoin(lacking, ", ")),
        " here; the peer has ", offered.empty() ? "none" : absl::StrJoin(offered, ", ")));
  }
  std::stable_sort(routes.begin(), routes.end(),
                   [](const Route& a, const Route& b) { return a.kind < b.kind; });
  return routes;
}

absl::StatusOr<TransportChoice> ChooseTransport(const TransportPolicy& policy,
                                                const std::vector<TransportCandidate>& candidates) {
  TransportChoice choice;
  std::vector<std::string> passed_over;
  for (const TransportCandidate& candidate : candidates) {
    if (!policy.Allows(candidate.kind)) {
      continue;
    }
    if (candidate.usable.ok()) {
      choice.kinds.push_back(candidate.kind);
    } else if (choice.kinds.empty()) {
      passed_over.push_back(absl::StrCat("no ", std::string(ToString(candidate.kind)), ": ",
                                         std::string(candidate.usable.message())));
    }
  }
  if (choice.kinds.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "transport: ",
        policy.forced ? absl::StrCat("only ", std::string(ToString(*policy.forced)), " is allowed")
                      : std::string("nothing is usable"),
        " here; ",
        passed_over.empty() ? "the peer does not offer it" : absl::StrJoin(passed_over, "; ")));
  }
  choice.reason = policy.forced         ? std::string("asked for by --kv-transport")
                  : passed_over.empty() ? std::string("the best there is")
                                        : absl::StrJoin(passed_over, "; ");
  return choice;
}

}  // namespace baton
