#include <algorithm>
#include <vector>

#include "router/policy_prediction.h"

namespace baton {
namespace {

// So many requests at once a session's own worker takes, however idle the others are.
constexpr double kAlwaysTaken = 4;

// FNV-1a over the key, then mixed with the worker: each session has its own order of all workers,
// and when one goes only its own sessions move.
std::uint64_t HashOfSession(std::string_view session) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : session) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

std::uint64_t WeightOf(std::uint64_t session, const RouteCandidate& worker) {
  std::uint64_t mixed = session ^ (worker.identity != 0 ? worker.identity : worker.worker.value()) *
                                      0x9e3779b97f4a7c15;
  mixed = (mixed ^ mixed >> 32) * 0xd6e8feb86659fd93;
  mixed = (mixed ^ mixed >> 32) * 0xd6e8feb86659fd93;
  return mixed ^ mixed >> 32;
}

// Requests with one key go to one decode worker, where the KV of the earlier ones is, unless it is
// far busier than the mean: then to the key's next. Without a key as `prefix`.
class SessionPolicy final : public RoutePolicy {
 public:
  absl::StatusOr<RouteDecision> Choose(const RouteRequest& request,
                                       const RouteCandidates& candidates,
                                       const RouteOptions& options) const override {
    if (request.session.empty() || candidates.decode.empty()) {
      return prefix_->Choose(request, candidates, options);
    }
    const RoutePrediction prediction(request, candidates, options);
    for (const std::size_t decode : InOrder(request.session, candidates.decode)) {
      if (const auto way = prediction.BestBy(decode); way.has_value()) {
        return prediction.Decide(*way);
      }
    }
    return NoPrefillWorker();
  }

 private:
  // Indices, those within the bound first; of each kind the key's own order.
  static std::vector<std::size_t> InOrder(std::string_view session,
                                          const std::vector<RouteCandidate>& workers) {
    struct Place {
      bool too_busy = false;
      std::uint64_t weight = 0;
      std::size_t index = 0;
    };
    const double most = MostRequests(workers, kAlwaysTaken);
    const std::uint64_t hash = HashOfSession(session);
    std::vector<Place> places;
    for (std::size_t i = 0; i < workers.size(); ++i) {
      places.push_back({RequestsOf(workers[i]) + 1 > most, WeightOf(hash, workers[i]), i});
    }
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
      return a.too_busy != b.too_busy ? b.too_busy
             : a.weight != b.weight   ? a.weight > b.weight
                                      : a.index < b.index;
    });
    std::vector<std::size_t> order;
    for (const Place& place : places) {
      order.push_back(place.index);
    }
    return order;
  }

  const std::unique_ptr<RoutePolicy> prefix_ = MakePrefixPolicy();
};

}  // namespace

std::unique_ptr<RoutePolicy> MakeSessionPolicy() {
  return std::make_unique<SessionPolicy>();
}

}  // namespace baton
