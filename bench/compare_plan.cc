#include "bench/compare_plan.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace baton {
namespace {

// A trace has at least the requests of so many runs: of those from a run's first on, some are left
// out since they are longer than the model's context.
constexpr std::size_t kLeastTraceRuns = 4;

std::size_t Count(double rate, Duration duration) {
  return static_cast<std::size_t>(rate * std::chrono::duration<double>(duration).count() + 0.5);
}

// Of a trace: with one alone there is no rate.
std::size_t RequestsOfARun(double rate, Duration duration) {
  return std::max<std::size_t>(Count(rate, duration), 2);
}

ComparedWorkload Mixed(std::vector<double> rates, double reference, Duration duration) {
  constexpr double kLongShare = 0.2;
  return {.name = "mixed",
          .description =
              "four of five requests are chats of 64 prompt and 96 new tokens that come by "
              "Poisson, the fifth is a prompt of 2,048 tokens with 8 new ones; these are "
              "evenly apart",
          .stream_kind = "chat",
          .event_kind = "long",
          .rates = std::move(rates),
          .reference_rate = reference,
          .duration = duration,
          .make = [](double rate, Duration length, std::uint64_t seed) {
            return MakeMixedWorkload({.chat = {.prompt = 64, .output = 96},
                                      .longer = {.prompt = 2048, .output = 8},
                                      .chats_per_second = rate * (1 - kLongShare),
                                      .long_per_second = rate * kLongShare,
                                      .duration = length},
                                     seed);
          }};
}

ComparedWorkload ShortChats(std::vector<double> rates, double reference, Duration duration) {
  return {.name = "short chats",
          .description = "32 prompt and 128 new tokens, Poisson: nearly all the work is decoding",
          .rates = std::move(rates),
          .reference_rate = reference,
          .duration = duration,
          .make = [](double rate, Duration length, std::uint64_t seed) {
            Workload workload =
                MakeUniformWorkload({.prompt = 32, .output = 128}, {}, Count(rate, length), seed);
            const std::vector<Duration> arrivals =
                MakeArrivalsWithin({.seed = seed}, workload.requests.size(), length);
            for (std::size_t i = 0; i < arrivals.size(); ++i) {
              workload.requests[i].shape.arrival = arrivals[i];
            }
            return workload;
          }};
}

struct TraceChoice {
  std::string name;
  std::string description;
  const char* file;
  int length_divisor;
};

absl::StatusOr<ComparedWorkload> Replay(const PlanOptions& options,
                                        const TraceChoice& choice,
                                        std::vector<double> rates,
                                        double reference,
                                        Duration duration) {
  const std::string path = options.traces + "/" + choice.file;
  ASSIGN_OR_RETURN(Trace read, ReadTraceFile(path, choice.length_divisor));
  const std::size_t most = RequestsOfARun(options.rate_factor * rates.back(), duration);
  if (read.requests.size() / kLeastTraceRuns < most) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", read.requests.size(), " requests are too few for ", rates.back(),
                     " a second times --rate-factor ", options.rate_factor, ", which takes ",
                     most * kLeastTraceRuns));
  }
  // Shared by the copies of `make`, which outlive this function.
  const auto trace = std::make_shared<const Trace>(std::move(read));
  return ComparedWorkload{
      .name = choice.name,
      .description = choice.description,
      .rates = std::move(rates),
      .reference_rate = reference,
      .duration = duration,
      .make = [trace](double rate, Duration length, std::uint64_t seed) {
        constexpr std::size_t kStride = 97;  // another seed begins elsewhere in the trace
        const std::size_t requests = RequestsOfARun(rate, length);
        const std::size_t beginnings = trace->requests.size() - kLeastTraceRuns * requests + 1;
        auto workload = MakeTraceWorkload(*trace,
                                          {.first = (seed * kStride) % beginnings,
                                           .requests = requests,
                                           .requests_per_second = rate},
                                          seed);
        BATON_CHECK(workload.ok());  // from there on as many are left as several runs take
        return *std::move(workload);
      }};
}

const TraceChoice kCode{.name = "code",
                        .description =
                            "Azure's code completion trace of 2023 at half its lengths: "
                            "long prompts, few new tokens",
                        .file = "azure_2023_code.csv",
                        .length_divisor = 2};
const TraceChoice kConversation{
    .name = "conversation",
    .description = "Azure's conversation trace of 2023 at half its lengths",
    .file = "azure_2023_conv.csv",
    .length_divisor = 2};
const TraceChoice kShared{.name = "shared prefixes",
                          .description =
                              "Mooncake's conversation trace, lengths divided by 32: 37% "
                              "of the prompt blocks were there before",
                          .file = "mooncake_conversation.jsonl",
                          .length_divisor = 32};

// The rates as written down above, times the factor, and the limits.
ComparePlan Adapted(ComparePlan plan, const PlanOptions& options) {
  for (ComparedWorkload& workload : plan.workloads) {
    workload.limits = options.limits;
    workload.reference_rate *= options.rate_factor;
    for (double& rate : workload.rates) {
      rate *= options.rate_factor;
    }
  }
  return plan;
}

}  // namespace

absl::StatusOr<ComparePlan> QuickPlan(const PlanOptions& options) {
  using std::chrono::seconds;
  ComparePlan plan{.chunks = {64, 128, 512},
                   .chat_duration = seconds(8),
                   .crossover_prompts = {128, 512, 2048},
                   .crossover_outputs = {1, 16, 48},
                   .crossover_running = {2}};
  plan.workloads.push_back(Mixed({1, 2, 4}, 2, seconds(9)));
  plan.workloads.back().reference_repeats = 2;
  ASSIGN_OR_RETURN(ComparedWorkload code, Replay(options, kCode, {1, 2}, 1, seconds(6)));
  plan.workloads.push_back(std::move(code));
  return Adapted(std::move(plan), options);
}

absl::StatusOr<ComparePlan> FullPlan(const PlanOptions& options) {
  using std::chrono::seconds;
  ComparePlan plan{.chunks = {64, 128, 512},
                   .chunk_repeats = 3,
                   .chat_duration = seconds(22),
                   .chat_repeats = 3,
                   .crossover_repeats = 3,
                   .crossover_prompts = {64, 128, 256, 512, 1024, 2048, 4096},
                   .crossover_outputs = {1, 8, 32, 96},
                   .crossover_running = {0, 2, 6}};
  plan.workloads.push_back(Mixed({0.5, 1, 2, 3, 4, 6}, 2, seconds(20)));
  plan.workloads.push_back(ShortChats({1, 2, 4, 6, 8}, 4, seconds(20)));
  ASSIGN_OR_RETURN(ComparedWorkload code,
                   Replay(options, kCode, {0.25, 0.5, 1, 2}, 0.5, seconds(24)));
  plan.workloads.push_back(std::move(code));
  ASSIGN_OR_RETURN(ComparedWorkload conversation,
                   Replay(options, kConversation, {0.25, 0.5, 1, 2}, 0.5, seconds(24)));
  plan.workloads.push_back(std::move(conversation));
  ASSIGN_OR_RETURN(ComparedWorkload shared, Replay(options, kShared, {1, 2, 4, 8}, 2, seconds(20)));
  plan.workloads.push_back(std::move(shared));
  for (ComparedWorkload& workload : plan.workloads) {
    workload.reference_repeats = 3;
  }
  plan.workloads.front().reference_repeats = 5;
  plan.workloads.front().other_repeats = 2;
  return Adapted(std::move(plan), options);
}

}  // namespace baton
