#include "bench/compare_rounds.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/bench_load.h"
#include "bench/cores.h"
#include "bench/machine_limits.h"
#include "bench/measured_crossover.h"
#include "common/status_macros.h"

namespace baton {
namespace {

constexpr int kMostAttempts = 2;    // at a run of which nothing was answered
constexpr int kDefaultChunk = 256;  // --max-batch-tokens
constexpr Duration kDisturbEvery = std::chrono::seconds(5);
constexpr Duration kFirstDisturb = std::chrono::seconds(2);
constexpr int kChatPrompt = 64;   // tokens, of a running chat
constexpr int kTimedTokens = 64;  // by which a running chat's length is chosen

std::string ProcessorName() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) {
      return line.substr(line.find(':') + 2);
    }
  }
  return "unknown processor";
}

// Which process is kept on which cores.
struct Places {
  std::vector<int> workers;  // two
  std::vector<int> shared;   // routers and the load generator

  bool crowded() const { return shared == workers; }
  std::string Describe() const {
    return absl::StrCat("one worker thread on each of the cores ", workers[0], " and ", workers[1],
                        crowded() ? "; routers and the load generator run on the same two cores, "
                                    "since the machine has no others"
                                  : absl::StrCat("; routers and the load generator on cores ",
                                                 absl::StrJoin(shared, ", ")));
  }
};

absl::StatusOr<Places> ChoosePlaces() {
  Places places{.workers = IdlestCores(2)};
  if (places.workers.size() < 2) {
    return absl::FailedPreconditionError("a comparison needs two cores");
  }
  std::sort(places.workers.begin(), places.workers.end());
  for (const int core : PermittedCores()) {
    if (std::find(places.workers.begin(), places.workers.end(), core) == places.workers.end()) {
      places.shared.push_back(core);
    }
  }
  if (places.shared.empty()) {
    places.shared = places.workers;
  }
  return places;
}

class Comparison {
 public:
  Comparison(const CompareOptions& options, Places places)
      : options_(options), plan_(options.plan), places_(std::move(places)) {}

  absl::StatusOr<CompareResult> Run() {
    result_.date = absl::FormatTime("%Y-%m-%d %H:%M", absl::Now(), absl::UTCTimeZone());
    result_.machine =
        absl::StrCat(ProcessorName(), ", ", PermittedCores().size(), " cores for this program");
    result_.cores = places_.Describe();
    RETURN_IF_ERROR(PinProcess(places_.shared));
    RETURN_IF_ERROR(StartBoth());
    for (const ComparedWorkload& workload : plan_.workloads) {
      RETURN_IF_ERROR(CompareOn(workload));
    }
    RETURN_IF_ERROR(WatchRunningChat());
    Say("crossover");
    ASSIGN_OR_RETURN(result_.crossover,
                     MeasureCrossover({.plan = plan_,
                                       .kv_bytes_per_token = options_.kv_bytes_per_token,
                                       .max_batch_tokens = kDefaultChunk,
                                       .rates = options_.rates,
                                       .progress = [this](const std::string& line) { Say(line); }},
                                      *split_load_));
    RETURN_IF_ERROR(CompareChunks());
    result_.seconds = Elapsed();
    result_.shared_cpu_cores =
        (ProcessCpuSeconds() + colocated_->RouterCpuSeconds() + split_->RouterCpuSeconds()) /
        result_.seconds;
    return std::move(result_);
  }

 private:
  double Elapsed() const {
    return std::chrono::duration<double>(Clock::System().Now() - start_).count();
  }

  void Say(const std::string& line) const {
    if (options_.progress) {
      options_.progress(absl::StrFormat("%5.0f s  %s", Elapsed(), line));
    }
  }

  absl::StatusOr<std::unique_ptr<BenchFleet>> StartFleet(bool split, int chunk) const {
    FleetOptions fleet = options_.fleet;
    fleet.prefill_workers = split ? 1 : 0;
    fleet.decode_workers = split ? 1 : 2;
    fleet.max_batch_tokens = chunk;
    fleet.worker_cores = places_.workers;
    fleet.shared_cores = places_.shared;
    return BenchFleet::Start(fleet);
  }

  absl::StatusOr<std::unique_ptr<BenchLoad>> LoadOn(const BenchFleet& fleet) {
    ASSIGN_OR_RETURN(std::unique_ptr<BenchLoad> load, BenchLoad::Create(fleet.address()));
    RETURN_IF_ERROR(load->WarmUp(fleet.splits()));
    return load;
  }

  absl::Status StartBoth() {
    Say("starting both set-ups");
    ASSIGN_OR_RETURN(colocated_, StartFleet(/*split=*/false, kDefaultChunk));
    ASSIGN_OR_RETURN(split_, StartFleet(/*split=*/true, kDefaultChunk));
    ASSIGN_OR_RETURN(colocated_load_, LoadOn(*colocated_));
    ASSIGN_OR_RETURN(split_load_, LoadOn(*split_));
    result_.model = split_load_->model();
    result_.transport = split_load_->transport();
    return absl::OkStatus();
  }

  BenchLoad& LoadFor(SetUp set_up) {
    return set_up == SetUp::kColocated ? *colocated_load_ : *split_load_;
  }

  // One run of a workload; the same rate and repeat come at the same times on every set-up.
  absl::StatusOr<LoadRun> RunOnce(
      const ComparedWorkload& workload, double rate, int repeat, SetUp set_up, BenchLoad& load) {
    Workload requests =
        workload.make(rate, workload.duration, static_cast<std::uint64_t>(repeat) + 1);
    for (LoadRequest& request : requests.requests) {
      request.path =
          set_up == SetUp::kDisaggregated ? v1::PATH_DISAGGREGATED : v1::PATH_UNSPECIFIED;
    }
    for (int attempt = 1;; ++attempt) {
      ASSIGN_OR_RETURN(LoadRun run, load.Run(requests));
      const LoadSummary all = Summarize(run, {.limits = workload.limits});
      if (all.completed() > 0) {
        SayRun(workload, rate, set_up, run);
        return run;
      }
      const std::string why =
          absl::StrCat(SetUpName(set_up), " answered nothing: ", all.errors.begin()->first);
      if (attempt == kMostAttempts) {
        return absl::UnavailableError(why);
      }
      Say(why + "; once more");
    }
  }

  void SayRun(const ComparedWorkload& workload,
              double rate,
              SetUp set_up,
              const LoadRun& run) const {
    const LoadSummary all = Summarize(run, {.limits = workload.limits});
    const LoadSummary streams = Summarize(run, {.kind = workload.stream_kind});
    Say(absl::StrFormat(
        "%s, %g requests/s, %s: %d requests, %d failed, ttft p50 %.0f ms, itl p99 %.0f ms, %.0f%% "
        "good",
        workload.name, rate, SetUpName(set_up), all.requests, all.failed, all.first_token_ms.p50,
        streams.inter_token_ms.p99, 100 * all.good_share()));
  }

  bool IsLate() const {
    return Elapsed() > std::chrono::duration<double>(options_.time_limit).count();
  }

  absl::Status CompareOn(const ComparedWorkload& workload) {
    WorkloadRuns& runs = result_.workloads.emplace_back();
    runs.workload = workload;
    for (const SetUp set_up : kSetUps) {
      runs.set_ups.push_back({.set_up = set_up, .max_batch_tokens = kDefaultChunk});
      for (const double rate : workload.rates) {
        runs.set_ups.back().points.push_back({.rate = rate});
      }
    }
    for (int repeat = 0; repeat < std::max(workload.reference_repeats, workload.other_repeats);
         ++repeat) {
      for (std::size_t i = 0; i < workload.rates.size(); ++i) {
        const int repeats = workload.rates[i] == workload.reference_rate
                                ? workload.reference_repeats
                                : workload.other_repeats;
        if (repeat >= repeats || (repeat > 0 && IsLate())) {
          continue;
        }
        for (SetUpRuns& set_up : runs.set_ups) {
          ASSIGN_OR_RETURN(LoadRun run, RunOnce(workload, workload.rates[i], repeat, set_up.set_up,
                                                LoadFor(set_up.set_up)));
          set_up.points[i].runs.push_back(std::move(run));
        }
      }
    }
    return absl::OkStatus();
  }

  // What another chunk would do for the colocated side, under the first workload.
  absl::Status CompareChunks() {
    WorkloadRuns& runs = result_.workloads.front();
    for (const int chunk : plan_.chunks) {
      if (IsLate()) {
        Say(absl::StrCat("no time left for chunks of ", chunk));
        continue;
      }
      ASSIGN_OR_RETURN(const std::unique_ptr<BenchFleet> fleet, StartFleet(/*split=*/false, chunk));
      ASSIGN_OR_RETURN(const std::unique_ptr<BenchLoad> load, LoadOn(*fleet));
      Say(absl::StrCat("colocated in chunks of ", chunk));
      SetUpRuns& set_up = runs.chunks.emplace_back();
      set_up.max_batch_tokens = chunk;
      set_up.points.push_back({.rate = runs.workload.reference_rate});
      for (int repeat = 0; repeat < plan_.chunk_repeats; ++repeat) {
        ASSIGN_OR_RETURN(LoadRun run, RunOnce(runs.workload, runs.workload.reference_rate, repeat,
                                              SetUp::kColocated, *load));
        set_up.points.back().runs.push_back(std::move(run));
      }
    }
    return absl::OkStatus();
  }

  struct ChatLength {
    int tokens = 0;
    Duration duration{};  // undisturbed
  };

  // As long as the plan says or the model's context lets it be.
  absl::StatusOr<ChatLength> ChooseChatLength() {
    ASSIGN_OR_RETURN(
        LoadRun run,
        split_load_->Run(
            {.requests = {{.shape = {.prompt_tokens = kChatPrompt, .output_tokens = kTimedTokens},
                           .path = v1::PATH_DISAGGREGATED}}}));
    const LoadSummary timed = Summarize(run, {});
    if (timed.failed > 0) {
      return absl::UnavailableError("a single chat: " + timed.errors.begin()->first);
    }
    const std::chrono::duration<double, std::milli> gap(timed.per_token_ms.p50);
    const double tokens =
        std::min<double>(plan_.chat_duration / gap, options_.context_tokens - kChatPrompt);
    return ChatLength{.tokens = static_cast<int>(tokens),
                      .duration = std::chrono::duration_cast<Duration>(tokens * gap)};
  }

  // `streams` chats from the start, and a prompt of 2,048 tokens every five seconds while they last
  // undisturbed.
  static Workload ChatLoad(int streams, const ChatLength& length, bool disturbed, v1::Path path) {
    Workload workload;
    for (int i = 0; i < streams; ++i) {
      workload.requests.push_back(
          {.shape = {.prompt_tokens = kChatPrompt, .output_tokens = length.tokens},
           .seed = static_cast<std::uint64_t>(i),
           .kind = "chat",
           .path = path});
    }
    for (Duration at = std::min(kFirstDisturb, length.duration / 4);
         disturbed && at < length.duration; at += kDisturbEvery) {
      workload.requests.push_back(
          {.shape = {.arrival = at, .prompt_tokens = 2048, .output_tokens = 8},
           .seed = 100 + workload.requests.size(),
           .kind = "long",
           .path = path});
    }
    return workload;
  }

  absl::StatusOr<LoadRun> RunChat(const char* what, BenchLoad& load, Workload workload) {
    ASSIGN_OR_RETURN(LoadRun run, load.Run(std::move(workload)));
    const LoadSummary chat = Summarize(run, {.kind = "chat"});
    Say(absl::StrFormat("running chat, %s: itl p99 %.0f ms, longest stall %.0f ms", what,
                        chat.inter_token_ms.p99, chat.inter_token_ms.max));
    return run;
  }

  absl::Status WatchRunningChat() {
    ASSIGN_OR_RETURN(const ChatLength length, ChooseChatLength());
    for (int repeat = 0; repeat < plan_.chat_repeats; ++repeat) {
      ASSIGN_OR_RETURN(LoadRun undisturbed,
                       RunChat("undisturbed", *split_load_,
                               ChatLoad(1, length, /*disturbed=*/false, v1::PATH_DISAGGREGATED)));
      ASSIGN_OR_RETURN(LoadRun split,
                       RunChat("disaggregated", *split_load_,
                               ChatLoad(1, length, /*disturbed=*/true, v1::PATH_DISAGGREGATED)));
      ASSIGN_OR_RETURN(LoadRun colocated,
                       RunChat("colocated", *colocated_load_,
                               ChatLoad(2, length, /*disturbed=*/true, v1::PATH_UNSPECIFIED)));
      result_.chat.undisturbed.push_back(std::move(undisturbed));
      result_.chat.disaggregated.push_back(std::move(split));
      result_.chat.colocated.push_back(std::move(colocated));
    }
    return absl::OkStatus();
  }

  const CompareOptions& options_;  // the caller's
  const ComparePlan& plan_;        // of the options
  const Places places_;
  const TimePoint start_ = Clock::System().Now();
  CompareResult result_;
  std::unique_ptr<BenchFleet> colocated_;
  std::unique_ptr<BenchFleet> split_;
  std::unique_ptr<BenchLoad> colocated_load_;
  std::unique_ptr<BenchLoad> split_load_;
};

}  // namespace

std::string SetUpName(SetUp set_up) {
  switch (set_up) {
    case SetUp::kColocated:
      return "colocated";
    case SetUp::kDisaggregated:
      return "disaggregated";
    case SetUp::kConditional:
      return "conditional";
  }
  return "";
}

absl::StatusOr<CompareResult> RunComparison(const CompareOptions& options) {
  ASSIGN_OR_RETURN(Places places, ChoosePlaces());
  return Comparison(options, std::move(places)).Run();
}

}  // namespace baton
