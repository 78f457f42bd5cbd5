#include "worker/router_addresses.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/clock.h"

namespace baton {
namespace {

constexpr Duration kLongestLookup = std::chrono::seconds(10);
constexpr timespec kLookAtStop{.tv_sec = 0, .tv_nsec = 50'000'000};

// One question to the resolver, which may use all of it until the question is over.
struct Lookup {
  std::string host;
  std::string port;
  addrinfo hints{};
  gaicb request{};
};

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { freeaddrinfo(addresses); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

std::string NumericText(const addrinfo& found) {
  char text[INET6_ADDRSTRLEN] = "";
  if (found.ai_family == AF_INET) {
    const auto& address = *reinterpret_cast<const sockaddr_in*>(found.ai_addr);
    inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text));
    return absl::StrCat(text, ":", ntohs(address.sin_port));
  }
  const auto& address = *reinterpret_cast<const sockaddr_in6*>(found.ai_addr);
  inet_ntop(AF_INET6, &address.sin6_addr, text, sizeof(text));
  return absl::StrCat("[", text, "]:", ntohs(address.sin6_port));
}

std::vector<std::string> TextsOf(const Addresses& addresses) {
  std::set<std::string> of_family[2];
  for (const addrinfo* found = addresses.get(); found != nullptr; found = found->ai_next) {
    if (found->ai_family == AF_INET || found->ai_family == AF_INET6) {
      of_family[found->ai_family == AF_INET ? 0 : 1].insert(NumericText(*found));
    }
  }
  const std::set<std::string>& chosen = of_family[0].empty() ? of_family[1] : of_family[0];
  return {chosen.begin(), chosen.end()};
}

// The resolver's own error number; EAI_CANCELED when stopped.
int Await(std::unique_ptr<Lookup>& lookup, const std::stop_token& stop) {
  gaicb* const list[] = {&lookup->request};
  if (const int refused = getaddrinfo_a(GAI_NOWAIT, const_cast<gaicb**>(list), 1, nullptr);
      refused != 0) {
    return refused;
  }
  const TimePoint deadline = Clock::System().Now() + kLongestLookup;
  while (gai_error(&lookup->request) == EAI_INPROGRESS) {
    const bool late = Clock::System().Now() >= deadline;
    if (!late && !stop.stop_requested()) {
      gai_suspend(list, 1, &kLookAtStop);
      continue;
    }
    if (gai_cancel(&lookup->request) == EAI_NOTCANCELED) {
      // A thread of the C library is in the middle of it and nothing can end that. It keeps its
      // question: a few hundred bytes, only when a name server does not answer.
      static_cast<void>(lookup.release());
    }
    return late ? EAI_AGAIN : EAI_CANCELED;
  }
  return gai_error(&lookup->request);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ResolveBySystem(const std::string& host_port,
                                                         const std::stop_token& stop) {
  const std::size_t colon = host_port.rfind(':');
  auto lookup = std::make_unique<Lookup>();
  lookup->host = host_port.substr(0, colon);
  lookup->port = colon == std::string::npos ? "" : host_port.substr(colon + 1);
  if (lookup->host.size() >= 2 && lookup->host.front() == '[' && lookup->host.back() == ']') {
    lookup->host = lookup->host.substr(1, lookup->host.size() - 2);
  }
  lookup->hints.ai_socktype = SOCK_STREAM;
  lookup->hints.ai_flags = AI_NUMERICSERV;
  lookup->request.ar_name = lookup->host.c_str();
  lookup->request.ar_service = lookup->port.c_str();
  lookup->request.ar_request = &lookup->hints;
  const int error = Await(lookup, stop);
  if (error == EAI_CANCELED) {
    return absl::CancelledError(absl::StrCat("resolving ", host_port, " was stopped"));
  }
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("resolving ", host_port, ": ", gai_strerror(error)));
  }
  const Addresses addresses(lookup->request.ar_result);
  std::vector<std::string> texts = TextsOf(addresses);
  if (texts.empty()) {
    return absl::UnavailableError(absl::StrCat("resolving ", host_port, ": no address"));
  }
  return texts;
}

}  // namespace baton
