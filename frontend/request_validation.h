#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "baton/v1/completions.pb.h"
#include "baton/v1/worker.pb.h"
#include "model/checkpoint.h"

namespace baton {

// A request that may be computed: every range checked, every default filled in, the prompt
// tokenized.
struct ValidatedRequest {
  std::string request_id;
  v1::SequenceSpec sequence;
  v1::Path path = v1::PATH_UNSPECIFIED;
  std::uint32_t choices = 1;
  bool echo = false;
  std::vector<std::string> stop;  // strings; what `sequence` carries are stop tokens
  std::int32_t priority = 0;
  std::string session;
};

// Residency zones that a server takes.
struct ZoneRules {
  // The only one that a request may name; nullopt: any, since the generator knows which there are.
  std::optional<std::string> only;
  std::string of_others;  // the zone of a request that names none; empty: none, anywhere will do
};

// Turns what a client sent into a ValidatedRequest or a status that names the offending field as in
// the proto.
//
// Nothing is ignored: an enum value or a field number this build does not know is
// INVALID_ARGUMENT. Of several problems the first in the order of the checks is reported; the
// prompt is tokenized last, and not at all when its length alone shows that it cannot fit.
//
// Immutable after construction and therefore thread-safe.
class RequestValidator {
 public:
  // `checkpoint` must outlive the validator. `model_name` is the name it is served under.
  RequestValidator(const Checkpoint& checkpoint, std::string model_name, ZoneRules zones);

  absl::StatusOr<ValidatedRequest> Validate(const v1::CompleteRequest& request) const;

  // NOT_FOUND, field `model`, unless `model` is empty or the served name.
  absl::Status CheckModel(const std::string& model) const;

  const std::string& model_name() const { return model_name_; }

 private:
  absl::StatusOr<std::vector<TokenId>> TokenizePrompt(const v1::CompleteRequest& request) const;
  absl::StatusOr<std::vector<TokenId>> TokenizeText(const v1::CompleteRequest& request) const;
  absl::StatusOr<std::vector<TokenId>> TakeTokens(const v1::TokenIds& tokens) const;
  absl::StatusOr<std::vector<TokenId>> TokenizeChat(const v1::Chat& chat) const;
  absl::Status CheckPromptBytes(std::size_t bytes) const;
  absl::Status FillSampling(const v1::Sampling& given, v1::EngineSampling& sampling) const;
  absl::Status FillStopTokens(const v1::CompleteRequest& request, v1::SequenceSpec& sequence) const;
  absl::Status FillLengths(const v1::CompleteRequest& request, v1::SequenceSpec& sequence) const;

  const Checkpoint& checkpoint_;
  const std::string model_name_;
  const ZoneRules zones_;
  std::size_t longest_token_bytes_ = 1;
  std::vector<TokenId> ends_of_sequence_;
};

}  // namespace baton
