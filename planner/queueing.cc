#include "planner/queueing.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace baton {

double ChanceOfWaiting(const QueueLoad& load) {
  const double offered = load.offered_servers();
  if (offered >= load.servers) {
    return 1;
  }
  // Erlang's B by its recursion, which cannot overflow, and C from B.
  double blocked = 1;
  for (int servers = 1; servers <= load.servers; ++servers) {
    blocked = offered * blocked / (servers + offered * blocked);
  }
  return blocked / (1 - load.utilisation() * (1 - blocked));
}

double MeanWaitSeconds(const QueueLoad& load) {
  const double offered = load.offered_servers();
  if (offered >= load.servers) {
    return std::numeric_limits<double>::infinity();
  }
  const double exponential =
      ChanceOfWaiting(load) * load.service_seconds / (load.servers - offered);
  return exponential * (1 + load.squared_variation) / 2;
}

double WaitQuantileSeconds(const QueueLoad& load, double quantile) {
  const double chance = ChanceOfWaiting(load);
  if (chance <= 1 - quantile) {
    return 0;
  }
  const double mean_of_those_who_wait = MeanWaitSeconds(load) / chance;
  return mean_of_those_who_wait * std::log(chance / (1 - quantile));
}

}  // namespace baton
