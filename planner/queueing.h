#pragma once

namespace baton {

// Waiting in front of c equal servers, with Poisson arrivals and service times of any distribution
// (M/G/c; with a squared variation of 0, all service times equal, M/D/c). Pure; thread-safe.
//
// One server: the formula of Pollaczek (1930) and Khinchine (1932), exact:
//   Wq = rho / (1 - rho) * (1 + v) / 2 * S
// More: Lee and Longton's approximation (Operational Research Quarterly 10, 1959): the wait of
// M/M/c by Erlang's C formula, times (1 + v) / 2; the same for c = 1. The tail is taken as
// exponential above the chance of waiting at all, which is exact for M/M/c.
struct QueueLoad {
  int servers = 1;                 // at least 1
  double arrivals_per_second = 0;  // at least 0
  double service_seconds = 0;      // mean, at least 0
  double squared_variation = 0;    // variance over squared mean

  double offered_servers() const { return arrivals_per_second * service_seconds; }
  double utilisation() const { return offered_servers() / servers; }
};

// Chance that an arrival waits, with exponential service: Erlang's C. 1 when the servers cannot
// keep up.
double ChanceOfWaiting(const QueueLoad& load);
// Infinite when the servers cannot keep up.
double MeanWaitSeconds(const QueueLoad& load);
// The wait that the share `quantile` (in [0, 1)) of arrivals does not exceed.
double WaitQuantileSeconds(const QueueLoad& load, double quantile);

}  // namespace baton
