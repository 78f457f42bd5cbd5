#include "frontend/metric_families.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>

#include "common/flags.h"

namespace baton {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricType;

// When this process began, near enough: when this library was loaded.
const double kProcessStart =
    std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();

double ResidentBytes() {
  long total_pages = 0;
  long resident_pages = 0;
  std::ifstream("/proc/self/statm") >> total_pages >> resident_pages;
  return static_cast<double>(resident_pages) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double ProcessorSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double OpenFiles() {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  return error ? 0 : static_cast<double>(std::distance(begin(files), end(files)));
}

}  // namespace

void Histogram::Add(double value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  ++counts_[static_cast<std::size_t>(bucket)];
  sum_ += value;
}

void Histogram::Merge(const Histogram& other) {
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    counts_[i] += other.counts_[i];
  }
  sum_ += other.sum_;
}

double MetricSeconds(Duration time) {
  return std::chrono::duration<double>(time).count();
}

void MetricFamilies::Begin(const char* name, const char* help, MetricType type) {
  families_.push_back({.name = name, .help = help, .type = type});
}

ClientMetric& MetricFamilies::Next(Labels labels) {
  ClientMetric& metric = families_.back().metric.emplace_back();
  metric.label = std::move(labels);
  metric.label.push_back({"model_name", model_});
  return metric;
}

void MetricFamilies::Gauge(const char* name, const char* help, double value, Labels labels) {
  BeginGauges(name, help);
  Value(std::move(labels), value);
}

void MetricFamilies::Counter(const char* name, const char* help, std::uint64_t value) {
  BeginCounters(name, help);
  Count({}, static_cast<double>(value));
}

void MetricFamilies::BeginCounters(const char* name, const char* help) {
  Begin(name, help, MetricType::Counter);
}

void MetricFamilies::Count(Labels labels, double value) {
  Next(std::move(labels)).counter.value = value;
}

void MetricFamilies::BeginGauges(const char* name, const char* help) {
  Begin(name, help, MetricType::Gauge);
}

void MetricFamilies::Value(Labels labels, double value) {
  Next(std::move(labels)).gauge.value = value;
}

void MetricFamilies::Distribution(const char* name, const char* help, const Histogram& histogram) {
  Begin(name, help, MetricType::Histogram);
  ClientMetric::Histogram& out = Next({}).histogram;
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < histogram.counts().size(); ++i) {
    below += histogram.counts()[i];
    const double bound = i < histogram.bounds().size() ? histogram.bounds()[i]
                                                       : std::numeric_limits<double>::infinity();
    out.bucket.push_back({.cumulative_count = below, .upper_bound = bound});
  }
  out.sample_count = below;
  out.sample_sum = histogram.sum();
}

void MetricFamilies::Process(std::string_view role) {
  Gauge("baton_build_info", "Version and role of this process; always 1.", 1,
        {{"version", kBatonVersion}, {"role", std::string(role)}});
  Gauge("process_start_time_seconds", "When the process began, on the wall clock.", kProcessStart);
  Gauge("process_resident_memory_bytes", "Memory that is in use.", ResidentBytes());
  BeginCounters("process_cpu_seconds_total", "Processor time of all threads.");
  Count({}, ProcessorSeconds());
  Gauge("process_open_fds", "Open files and sockets.", OpenFiles());
}

}  // namespace baton
