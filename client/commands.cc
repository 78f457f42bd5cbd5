#include "client/commands.h"

#include <istream>
#include <iterator>
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/choice_printer.h"
#include "client/json_output.h"
#include "client/status_output.h"
#include "client/text_output.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

// For calls that compute nothing.
constexpr std::chrono::seconds kQuickDeadline{30};

v1::Path PathByName(const std::string& name) {
  if (name == "colocated") {
    return v1::PATH_COLOCATED;
  }
  return name == "disaggregated" ? v1::PATH_DISAGGREGATED : v1::PATH_UNSPECIFIED;
}

std::chrono::milliseconds Deadline(const GenerationFlags& flags) {
  return std::chrono::seconds(flags.timeout_seconds);
}

// Streams to `out`; returns the whole text of choice 0.
absl::StatusOr<std::string> StreamText(CompletionsClient& client,
                                       const v1::CompleteRequest& request,
                                       const GenerationFlags& flags,
                                       Console& console) {
  ChoicePrinter printer(console.out, request.has_n() ? request.n() : 1, console.dim);
  v1::CompleteChunk last;
  const absl::Status status =
      client.StreamComplete(request, Deadline(flags), [&](const v1::CompleteChunk& chunk) {
        printer.Add(chunk.choice());
        last = chunk;
      });
  printer.Finish();
  RETURN_IF_ERROR(status);
  console.out << DescribeRequest(last.usage(), last.timeline(), console.dim) << std::endl;
  return printer.text(0);
}

void AddMessage(v1::CompleteRequest& request, const std::string& role, const std::string& content) {
  v1::Message& message = *request.mutable_chat()->add_messages();
  message.set_role(role);
  message.set_content(content);
}

void FillSampling(const GenerationFlags& flags, v1::Sampling& sampling) {
  const auto number = [&sampling](const std::optional<double>& value,
                                  void (v1::Sampling::*set)(float)) {
    if (value.has_value()) {
      (sampling.*set)(static_cast<float>(*value));
    }
  };
  number(flags.temperature, &v1::Sampling::set_temperature);
  number(flags.top_p, &v1::Sampling::set_top_p);
  number(flags.min_p, &v1::Sampling::set_min_p);
  number(flags.repetition_penalty, &v1::Sampling::set_repetition_penalty);
  number(flags.frequency_penalty, &v1::Sampling::set_frequency_penalty);
  number(flags.presence_penalty, &v1::Sampling::set_presence_penalty);
  if (flags.top_k.has_value()) {
    sampling.set_top_k(static_cast<std::uint32_t>(*flags.top_k));
  }
  if (flags.seed.has_value()) {
    sampling.set_seed(*flags.seed);
  }
}

}  // namespace

absl::StatusOr<std::string> ReadPrompt(const PromptSource& source, std::istream& in) {
  if (!source.file.empty()) {
    ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(source.file));
    return std::string(file.bytes());
  }
  if (source.argument != "-") {
    return *source.argument;
  }
  return std::string(std::istreambuf_iterator<char>(in), {});
}

v1::CompleteRequest MakeRequest(const GenerationFlags& flags) {
  v1::CompleteRequest request;
  FillSampling(flags, *request.mutable_sampling());
  if (flags.max_tokens.has_value()) {
    request.set_max_tokens(static_cast<std::uint32_t>(*flags.max_tokens));
  }
  if (flags.min_tokens.has_value()) {
    request.set_min_tokens(static_cast<std::uint32_t>(*flags.min_tokens));
  }
  for (const std::string& stop : flags.stop) {
    request.add_stop(stop);
  }
  request.set_ignore_eos(flags.ignore_eos);
  request.set_path(PathByName(flags.path));
  request.set_cache_salt(flags.cache_salt);
  request.set_request_id(flags.request_id);
  request.set_session(flags.session);
  request.set_zone(flags.zone);
  request.set_priority(static_cast<std::int32_t>(flags.priority));
  return request;
}

absl::Status RunComplete(CompletionsClient& client, const CompleteFlags& flags, Console& console) {
  client.set_tenant(flags.generation.tenant);
  v1::CompleteRequest request = MakeRequest(flags.generation);
  ASSIGN_OR_RETURN(*request.mutable_text(), ReadPrompt(flags.prompt, console.in));
  request.set_special(flags.special);
  request.set_echo(flags.echo);
  if (flags.n.has_value()) {
    request.set_n(static_cast<std::uint32_t>(*flags.n));
  }
  if (flags.logprobs.has_value()) {
    request.set_logprobs(static_cast<std::uint32_t>(*flags.logprobs));
  }
  if (flags.stream && !flags.json) {
    return StreamText(client, request, flags.generation, console).status();
  }
  ASSIGN_OR_RETURN(const v1::CompleteResponse response,
                   client.Complete(request, Deadline(flags.generation)));
  if (flags.json) {
    console.out << DumpJson(ToJson(response)) << std::endl;
    return absl::OkStatus();
  }
  ChoicePrinter printer(console.out, static_cast<std::size_t>(response.choices_size()),
                        console.dim);
  for (const v1::Choice& choice : response.choices()) {
    printer.Add(choice);
  }
  console.out << DescribeRequest(response.usage(), response.timeline(), console.dim) << std::endl;
  return absl::OkStatus();
}

absl::Status RunChat(CompletionsClient& client, const ChatFlags& flags, Console& console) {
  client.set_tenant(flags.generation.tenant);
  v1::CompleteRequest request = MakeRequest(flags.generation);
  if (!flags.system.empty()) {
    AddMessage(request, "system", flags.system);
  }
  absl::Status result;
  std::string line;
  while ((console.prompting ? console.out << "> " << std::flush : console.out) &&
         std::getline(console.in, line)) {
    if (line.empty()) {
      continue;
    }
    AddMessage(request, "user", line);
    const absl::StatusOr<std::string> answer =
        StreamText(client, request, flags.generation, console);
    if (answer.ok()) {
      AddMessage(request, "assistant", *answer);
    } else {
      request.mutable_chat()->mutable_messages()->RemoveLast();
      console.err << "baton: chat: " << DescribeError(answer.status()) << std::endl;
      result = answer.status();
    }
  }
  return result;
}

absl::Status RunTokenize(CompletionsClient& client, const TokenizeFlags& flags, Console& console) {
  v1::TokenizeRequest request;
  ASSIGN_OR_RETURN(*request.mutable_text(), ReadPrompt(flags.text, console.in));
  request.set_special(flags.special);
  ASSIGN_OR_RETURN(const v1::TokenizeResponse response, client.Tokenize(request, kQuickDeadline));
  const std::vector<std::uint32_t> ids(response.ids().begin(), response.ids().end());
  console.out << DumpJson(ids) << std::endl;
  return absl::OkStatus();
}

absl::Status RunModels(CompletionsClient& client, bool json, Console& console) {
  ASSIGN_OR_RETURN(const v1::ListModelsResponse response, client.ListModels(kQuickDeadline));
  console.out << (json ? DumpJson(ToJson(response)) + "\n" : DescribeModels(response))
              << std::flush;
  return absl::OkStatus();
}

absl::Status RunStatus(CompletionsClient& client, bool json, Console& console) {
  ASSIGN_OR_RETURN(const v1::StatusResponse response, client.Status(kQuickDeadline));
  console.out << (json ? DumpJson(ToJson(response)) + "\n" : DescribeStatus(response))
              << std::flush;
  return absl::OkStatus();
}

std::string DescribeError(const absl::Status& status) {
  std::string text =
      absl::StrCat(absl::StatusCodeToString(status.code()), ": ", std::string(status.message()));
  if (const std::optional<std::chrono::milliseconds> delay = RetryAfter(status)) {
    absl::StrAppend(&text, "; try again in ",
                    absl::StrFormat("%.1f s", std::chrono::duration<double>(*delay).count()));
  }
  return text;
}

}  // namespace baton
