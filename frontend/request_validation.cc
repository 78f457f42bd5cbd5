#include "frontend/request_validation.h"

#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/random_id.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "frontend/request_checks.h"
#include "proto/status_conversion.h"

namespace baton {

RequestValidator::RequestValidator(const Checkpoint& checkpoint,
                                   std::string model_name,
                                   ZoneRules zones)
    : checkpoint_(checkpoint), model_name_(std::move(model_name)), zones_(std::move(zones)) {
  const Tokenizer& tokenizer = checkpoint.tokenizer();
  for (int id = 0; id < tokenizer.vocabulary(); ++id) {
    const TokenId token(static_cast<std::uint32_t>(id));
    longest_token_bytes_ = std::max(longest_token_bytes_, tokenizer.TokenBytes(token).size());
    if (tokenizer.IsEndOfSequence(token)) {
      ends_of_sequence_.push_back(token);
    }
  }
}

absl::StatusOr<ValidatedRequest> RequestValidator::Validate(
    const v1::CompleteRequest& request) const {
  RETURN_IF_ERROR(CheckNoUnknownFields(request));
  RETURN_IF_ERROR(CheckModel(request.model()));
  RETURN_IF_ERROR(CheckFieldLengths(request));
  RETURN_IF_ERROR(CheckZone(request, zones_.only));
  RETURN_IF_ERROR(CheckChoices(request));
  RETURN_IF_ERROR(CheckStopStrings(request));

  ValidatedRequest result;
  result.path = request.path();
  result.priority = request.priority();
  result.session = request.session();
  result.choices = request.has_n() ? request.n() : 1;
  result.echo = request.echo();
  result.stop.assign(request.stop().begin(), request.stop().end());
  RETURN_IF_ERROR(FillSampling(request.sampling(), *result.sequence.mutable_sampling()));
  RETURN_IF_ERROR(FillStopTokens(request, result.sequence));
  if (request.has_logprobs()) {
    result.sequence.set_logprobs(request.logprobs());
    result.sequence.set_prompt_logprobs(request.echo());
  }
  result.sequence.set_cache_salt(request.cache_salt());
  result.sequence.set_zone(request.zone().empty() ? zones_.of_others : request.zone());
  const std::uint32_t context = static_cast<std::uint32_t>(checkpoint_.config().context_tokens);
  if (request.has_max_tokens() && (request.max_tokens() == 0 || request.max_tokens() > context)) {
    return FieldError("max_tokens", absl::StrCat(request.max_tokens(), " is not from 1 to ",
                                                 context, ", the context of the model"));
  }
  if (request.has_max_tokens() && request.min_tokens() > request.max_tokens()) {
    return FieldError("min_tokens", absl::StrCat(request.min_tokens(), " is above max_tokens ",
                                                 request.max_tokens()));
  }

  ASSIGN_OR_RETURN(const std::vector<TokenId> prompt, TokenizePrompt(request));
  result.sequence.mutable_prompt()->Reserve(static_cast<int>(prompt.size()));
  for (const TokenId id : prompt) {
    result.sequence.add_prompt(id.value());
  }
  RETURN_IF_ERROR(FillLengths(request, result.sequence));
  result.request_id =
      request.request_id().empty() ? HandoffId::Make().ToString() : request.request_id();
  return result;
}

absl::Status RequestValidator::CheckModel(const std::string& model) const {
  if (model.empty() || model == model_name_) {
    return absl::OkStatus();
  }
  return FieldError(absl::StatusCode::kNotFound, "model",
                    absl::StrCat("\"", model, "\" is not served here; served: ", model_name_));
}

absl::StatusOr<std::vector<TokenId>> RequestValidator::TokenizePrompt(
    const v1::CompleteRequest& request) const {
  switch (request.prompt_case()) {
    case v1::CompleteRequest::kText:
      return TokenizeText(request);
    case v1::CompleteRequest::kTokens:
      return TakeTokens(request.tokens());
    case v1::CompleteRequest::kChat:
      return TokenizeChat(request.chat());
    case v1::CompleteRequest::PROMPT_NOT_SET:
      break;
  }
  return FieldError("prompt", "is absent: one of text, tokens and chat is needed");
}

absl::StatusOr<std::vector<TokenId>> RequestValidator::TokenizeText(
    const v1::CompleteRequest& request) const {
  if (request.text().empty()) {
    return FieldError("prompt", "is empty");
  }
  RETURN_IF_ERROR(CheckUtf8("text", request.text()));
  RETURN_IF_ERROR(CheckPromptBytes(request.text().size()));
  return checkpoint_.tokenizer().Encode(request.text(), request.special());
}

absl::StatusOr<std::vector<TokenId>> RequestValidator::TakeTokens(
    const v1::TokenIds& tokens) const {
  if (tokens.ids().empty()) {
    return FieldError("prompt", "is empty");
  }
  const auto vocabulary = static_cast<std::uint32_t>(checkpoint_.tokenizer().vocabulary());
  std::vector<TokenId> ids;
  ids.reserve(static_cast<std::size_t>(tokens.ids_size()));
  for (int i = 0; i < tokens.ids_size(); ++i) {
    if (tokens.ids(i) >= vocabulary) {
      return FieldError(
          absl::StrCat("tokens.ids[", i, "]"),
          absl::StrCat(tokens.ids(i), " is not below the vocabulary size ", vocabulary));
    }
    ids.emplace_back(tokens.ids(i));
  }
  return ids;
}

// Roles are fixed to the three that every chat format has: a role that the model has never seen
// would be accepted by the template and answered with nonsense.
absl::StatusOr<std::vector<TokenId>> RequestValidator::TokenizeChat(const v1::Chat& chat) const {
  if (chat.messages().empty()) {
    return FieldError("prompt", "is empty: chat has no messages");
  }
  std::vector<ChatMessage> messages;
  std::size_t bytes = 0;
  for (int i = 0; i < chat.messages_size(); ++i) {
    const v1::Message& message = chat.messages(i);
    const std::string field = absl::StrCat("chat.messages[", i, "]");
    if (message.role() != "system" && message.role() != "user" && message.role() != "assistant") {
      return FieldError(absl::StrCat(field, ".role"),
                        absl::StrCat("\"", message.role(), "\" is not system, user or assistant"));
    }
    RETURN_IF_ERROR(CheckUtf8(absl::StrCat(field, ".content"), message.content()));
    bytes += message.content().size();
    messages.push_back({.role = message.role(), .content = message.content()});
  }
  RETURN_IF_ERROR(CheckPromptBytes(bytes));
  absl::StatusOr<std::vector<TokenId>> ids =
      checkpoint_.chat_format().Format(checkpoint_.tokenizer(), messages);
  if (!ids.ok()) {
    return FieldError(ids.status().code(), "chat", std::string(ids.status().message()));
  }
  return ids;
}

// Keeps the time spent on a hopeless prompt short: tokenizing 16 MiB takes seconds, this takes
// none. The factor of 2 leaves room for bytes that the vocabulary lacks and that therefore take no
// token.
absl::Status RequestValidator::CheckPromptBytes(std::size_t bytes) const {
  const auto context = static_cast<std::size_t>(checkpoint_.config().context_tokens);
  if (bytes <= 2 * context * longest_token_bytes_) {
    return absl::OkStatus();
  }
  return FieldError("prompt",
                    absl::StrCat("has ", bytes, " bytes, too many for the context of ", context,
                                 " tokens of at most ", longest_token_bytes_, " bytes"));
}

absl::Status RequestValidator::FillSampling(const v1::Sampling& given,
                                            v1::EngineSampling& sampling) const {
  constexpr float kGreedyBelow = 1e-5f;
  const auto vocabulary = static_cast<std::uint32_t>(checkpoint_.tokenizer().vocabulary());
  const float temperature = given.has_temperature() ? given.temperature() : 1.0f;
  const float top_p = given.has_top_p() ? given.top_p() : 1.0f;
  const float repetition = given.has_repetition_penalty() ? given.repetition_penalty() : 1.0f;
  RETURN_IF_ERROR(CheckRange("sampling.temperature", temperature, {.low = 0, .high = 2}));
  RETURN_IF_ERROR(CheckRange("sampling.top_p", top_p, {.low = 0, .high = 1, .low_excluded = true}));
  RETURN_IF_ERROR(CheckRange("sampling.min_p", given.min_p(), {.low = 0, .high = 1}));
  RETURN_IF_ERROR(CheckRange("sampling.repetition_penalty", repetition,
                             {.low = 0, .high = 2, .low_excluded = true}));
  RETURN_IF_ERROR(
      CheckRange("sampling.frequency_penalty", given.frequency_penalty(), {.low = -2, .high = 2}));
  RETURN_IF_ERROR(
      CheckRange("sampling.presence_penalty", given.presence_penalty(), {.low = -2, .high = 2}));
  RETURN_IF_ERROR(CheckLogitBias(given, vocabulary));

  sampling.set_temperature(temperature < kGreedyBelow ? 0.0f : temperature);
  sampling.set_top_p(top_p);
  sampling.set_top_k(std::min(given.top_k(), vocabulary));
  sampling.set_min_p(given.min_p());
  sampling.set_repetition_penalty(repetition);
  sampling.set_frequency_penalty(given.frequency_penalty());
  sampling.set_presence_penalty(given.presence_penalty());
  std::uint64_t seed = given.seed();
  if (!given.has_seed()) {
    FillRandom(reinterpret_cast<std::uint8_t*>(&seed), sizeof(seed));
  }
  sampling.set_seed(seed);
  *sampling.mutable_logit_bias() = given.logit_bias();
  return absl::OkStatus();
}

absl::Status RequestValidator::FillStopTokens(const v1::CompleteRequest& request,
                                              v1::SequenceSpec& sequence) const {
  const auto vocabulary = static_cast<std::uint32_t>(checkpoint_.tokenizer().vocabulary());
  absl::flat_hash_set<std::uint32_t> seen;
  for (int i = 0; i < request.stop_token_ids_size(); ++i) {
    const std::uint32_t id = request.stop_token_ids(i);
    if (id >= vocabulary) {
      return FieldError(absl::StrCat("stop_token_ids[", i, "]"),
                        absl::StrCat(id, " is not below the vocabulary size ", vocabulary));
    }
    if (seen.insert(id).second) {
      sequence.add_stop_token_ids(id);
    }
  }
  if (!request.ignore_eos()) {
    for (const TokenId id : ends_of_sequence_) {
      if (seen.insert(id.value()).second) {
        sequence.add_stop_token_ids(id.value());
      }
    }
  }
  return absl::OkStatus();
}

absl::Status RequestValidator::FillLengths(const v1::CompleteRequest& request,
                                           v1::SequenceSpec& sequence) const {
  const auto prompt = static_cast<std::uint32_t>(sequence.prompt_size());
  const auto context = static_cast<std::uint32_t>(checkpoint_.config().context_tokens);
  if (prompt == 0) {
    return FieldError("prompt", "has no tokens: the vocabulary holds none of its characters");
  }
  if (prompt >= context) {
    return FieldError(
        "prompt", absl::StrCat("has ", prompt,
                               " tokens; with one more they must fit the context of ", context));
  }
  const std::uint32_t room = context - prompt;
  if (request.has_max_tokens() && request.max_tokens() > room) {
    return FieldError("max_tokens", absl::StrCat(request.max_tokens(), " and the prompt's ", prompt,
                                                 " tokens do not fit the context of ", context));
  }
  sequence.set_max_tokens(request.has_max_tokens() ? request.max_tokens() : room);
  if (request.min_tokens() > sequence.max_tokens()) {
    return FieldError("min_tokens",
                      absl::StrCat(request.min_tokens(), " is above the ", sequence.max_tokens(),
                                   " tokens that the context leaves after the prompt"));
  }
  sequence.set_min_tokens(request.min_tokens());
  return absl::OkStatus();
}

}  // namespace baton
