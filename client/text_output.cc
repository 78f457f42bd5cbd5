#include "client/text_output.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/sha256.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

// An enum's name without what all names of the enum begin with; lower case when it is a word for
// people.
std::string Short(const std::string& name, const std::string& prefix) {
  return name.rfind(prefix, 0) == 0 ? name.substr(prefix.size()) : name;
}

std::string Seconds(const google::protobuf::Duration& duration) {
  return absl::StrFormat("%.3f s",
                         std::chrono::duration<double>(FromProtoDuration(duration)).count());
}

std::string RoleName(v1::Role role) {
  return role == v1::ROLE_UNSPECIFIED ? "?"
                                      : absl::AsciiStrToLower(Short(v1::Role_Name(role), "ROLE_"));
}

using Cells = std::vector<std::string>;

// Columns as wide as their widest cell, two spaces between them.
std::string Table(const std::vector<Cells>& rows) {
  std::vector<std::size_t> widths;
  for (const Cells& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const Cells& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, "  ", row[i], std::string(widths[i] - row[i].size(), ' '));
    }
    absl::StripTrailingAsciiWhitespace(&line);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

// The share of prompt tokens that the prefix cache held.
std::string HitRate(const v1::EngineLoad& load) {
  return load.prefix_query_tokens() == 0
             ? "-"
             : absl::StrCat(100 * load.prefix_hit_tokens() / load.prefix_query_tokens(), "%");
}

std::string Dimmed(const std::string& line, bool dim) {
  return dim ? absl::StrCat("\033[2m", line, "\033[0m") : line;
}

Cells WorkerRow(const v1::WorkerStatus& worker) {
  const v1::WorkerDescription& description = worker.description();
  const v1::EngineLoad& load = description.load();
  return {RoleName(description.role()),
          worker.address(),
          worker.alive() ? "alive" : "dead",
          absl::StrCat(load.free_blocks(), "/", load.total_blocks()),
          absl::StrCat(load.cached_blocks()),
          HitRate(load),
          absl::StrCat(load.running_sequences()),
          absl::StrCat(load.waiting_sequences()),
          absl::StrCat(load.open_handoffs()),
          description.transport(),
          absl::StrCat(load.prefilled_tokens()),
          absl::StrCat(load.decoded_tokens()),
          worker.problem()};
}

}  // namespace

std::string DescribeRequest(const v1::Usage& usage, const v1::Timeline& timeline, bool dim) {
  std::string line =
      absl::StrCat("[", absl::AsciiStrToLower(Short(v1::Path_Name(timeline.path()), "PATH_")), ", ",
                   Short(v1::RouteReason_Name(timeline.reason()), "ROUTE_REASON_"), "; ",
                   usage.prompt_tokens(), " prompt",
                   usage.cached_prompt_tokens() > 0
                       ? absl::StrCat(" (", usage.cached_prompt_tokens(), " cached)")
                       : "",
                   " + ", usage.completion_tokens(), " new tokens");
  if (timeline.path() == v1::PATH_DISAGGREGATED) {
    absl::StrAppend(&line, "; ", timeline.prefill_worker(), " -> ", timeline.decode_worker(),
                    " by ", timeline.transport());
  }
  absl::StrAppend(&line, "; queue ", Seconds(timeline.queue()), ", prefill ",
                  Seconds(timeline.prefill()));
  if (timeline.path() == v1::PATH_DISAGGREGATED) {
    absl::StrAppend(&line, ", transfer ", Seconds(timeline.transfer()), " (",
                    Seconds(timeline.exposed_transfer()), " exposed)");
  }
  absl::StrAppend(&line, ", first token ", Seconds(timeline.time_to_first_token()), ", decode ",
                  Seconds(timeline.decode()), ", total ", Seconds(timeline.total()), "]");
  return Dimmed(line, dim);
}

std::string DescribeChoice(std::size_t index, bool dim) {
  return Dimmed(absl::StrCat("[choice ", index, "]"), dim);
}

std::string DescribeLogprobs(const v1::Choice& choice) {
  std::vector<Cells> rows;
  const auto logprob = [](float value) { return absl::StrFormat("%.4f", value); };
  for (const v1::TokenLogprob& token : choice.logprobs().tokens()) {
    Cells row = {absl::StrCat(token.id()), logprob(token.logprob())};
    for (const v1::TokenLogprob::Alternative& alternative : token.alternatives()) {
      row.push_back(absl::StrCat(alternative.id(), " ", logprob(alternative.logprob())));
    }
    rows.push_back(std::move(row));
  }
  return Table(rows);
}

std::string DescribeStatus(const v1::StatusResponse& status) {
  std::string text =
      absl::StrCat("baton ", RoleName(status.role()), " ", status.version(), ", model ",
                   status.model(), ", ", status.ready() ? "ready" : "NOT ready", ", up ",
                   FromProtoDuration(status.uptime()) / std::chrono::seconds(1), " s\n");
  if (status.role() == v1::ROLE_ROUTER) {
    absl::StrAppend(&text, "prompts below ", status.colocate_below_tokens(),
                    " tokens stay on one worker\n");
  }
  std::vector<Cells> workers = {{"role", "address", "state", "free blocks", "cached", "hits",
                                 "running", "waiting", "handoffs", "transport", "prefilled",
                                 "decoded", "problem"}};
  for (const v1::WorkerStatus& worker : status.workers()) {
    workers.push_back(WorkerRow(worker));
  }
  absl::StrAppend(&text, "\nworkers\n", Table(workers), "\nrequests\n");
  // A map of proto has no order.
  const std::map<std::string, std::uint64_t> requests(status.requests().begin(),
                                                      status.requests().end());
  std::vector<Cells> counts;
  counts.reserve(requests.size());
  for (const auto& [outcome, count] : requests) {
    counts.push_back({outcome, absl::StrCat(count)});
  }
  absl::StrAppend(&text, counts.empty() ? "  none yet\n" : Table(counts));
  return text;
}

std::string DescribeModels(const v1::ListModelsResponse& models) {
  std::string text;
  for (const v1::Model& model : models.models()) {
    absl::StrAppend(&text, model.name(), "\n",
                    Table({{"context", absl::StrCat(model.context_tokens(), " tokens")},
                           {"vocabulary", absl::StrCat(model.vocabulary_size())},
                           {"KV block", absl::StrCat(model.block_tokens(), " tokens")},
                           {"model fingerprint", ToHex(model.model_fingerprint())},
                           {"tokenizer fingerprint", ToHex(model.tokenizer_fingerprint())}}));
  }
  return text;
}

}  // namespace baton
