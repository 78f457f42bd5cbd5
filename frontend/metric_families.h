#pragma once

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "frontend/histogram.h"

namespace baton {

// Seconds, as metrics have them.
double MetricSeconds(Duration time);

// Makes the families of one scrape; every metric carries the model's name, which is the server's
// own and never a client's. Not thread-safe.
class MetricFamilies {
 public:
  using Labels = std::vector<prometheus::ClientMetric::Label>;

  explicit MetricFamilies(std::string model) : model_(std::move(model)) {}

  void Gauge(const char* name, const char* help, double value, Labels labels = {});
  void Counter(const char* name, const char* help, std::uint64_t value);
  void Distribution(const char* name, const char* help, const Histogram& histogram);

  // A counter (gauge) with labels, whose values Count (Value) gives.
  void BeginCounters(const char* name, const char* help);
  void Count(Labels labels, double value);
  void BeginGauges(const char* name, const char* help);
  void Value(Labels labels, double value);

  // process_* of this process under the usual names, and baton_build_info with its role.
  void Process(std::string_view role);

  std::vector<prometheus::MetricFamily> Take() { return std::move(families_); }

 private:
  void Begin(const char* name, const char* help, prometheus::MetricType type);
  prometheus::ClientMetric& Next(Labels labels);

  const std::string model_;
  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace baton
