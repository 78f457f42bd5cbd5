#include "client/text_output.h"

#include <chrono>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/table.h"
#include "common/sha256.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

std::string Seconds(const google::protobuf::Duration& duration) {
  return absl::StrFormat("%.3f s",
                         std::chrono::duration<double>(FromProtoDuration(duration)).count());
}

std::string Dimmed(const std::string& line, bool dim) {
  return dim ? absl::StrCat("\033[2m", line, "\033[0m") : line;
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
