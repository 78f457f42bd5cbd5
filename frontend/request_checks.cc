#include "frontend/request_checks.h"

#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr std::size_t kMaxNameBytes = 128;
constexpr int kMaxStopStrings = 16;
constexpr std::size_t kMaxStopBytes = 256;
constexpr int kMaxLogitBias = 1024;
constexpr std::uint32_t kMaxChoices = 16;
constexpr std::uint32_t kMaxLogprobs = 20;

absl::Status CheckUnknown(const Message& message, const std::string& prefix);

// Enums of the contract are never repeated and never map values.
absl::Status CheckKnownField(const Message& message,
                             const FieldDescriptor& field,
                             const std::string& path) {
  const Reflection& reflection = *message.GetReflection();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    const int value = reflection.GetEnumValue(message, &field);
    if (field.enum_type()->FindValueByNumber(value) == nullptr) {
      return FieldError(path,
                        absl::StrCat(value, " is not a value of ", field.enum_type()->name()));
    }
    return absl::OkStatus();
  }
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field.is_map()) {
    return absl::OkStatus();
  }
  if (!field.is_repeated()) {
    return CheckUnknown(reflection.GetMessage(message, &field), absl::StrCat(path, "."));
  }
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    RETURN_IF_ERROR(CheckUnknown(reflection.GetRepeatedMessage(message, &field, i),
                                 absl::StrCat(path, "[", i, "].")));
  }
  return absl::OkStatus();
}

absl::Status CheckUnknown(const Message& message, const std::string& prefix) {
  const Reflection& reflection = *message.GetReflection();
  const auto& unknown = reflection.GetUnknownFields(message);
  if (!unknown.empty()) {
    return FieldError(absl::StrCat(prefix, "#", unknown.field(0).number()),
                      "no field of this number is known to this version");
  }
  std::vector<const FieldDescriptor*> present;
  reflection.ListFields(message, &present);
  for (const FieldDescriptor* field : present) {
    RETURN_IF_ERROR(CheckKnownField(message, *field, absl::StrCat(prefix, field->name())));
  }
  return absl::OkStatus();
}

absl::Status CheckLength(std::string_view field, std::string_view value) {
  if (value.size() <= kMaxNameBytes) {
    return absl::OkStatus();
  }
  return FieldError(field, absl::StrCat("has ", value.size(), " bytes; at most ", kMaxNameBytes));
}

}  // namespace

absl::Status CheckNoUnknownFields(const google::protobuf::Message& request) {
  return CheckUnknown(request, "");
}

absl::Status CheckFieldLengths(const v1::CompleteRequest& request) {
  RETURN_IF_ERROR(CheckLength("request_id", request.request_id()));
  RETURN_IF_ERROR(CheckLength("session", request.session()));
  RETURN_IF_ERROR(CheckLength("zone", request.zone()));
  return CheckLength("cache_salt", request.cache_salt());
}

absl::Status CheckZone(const v1::CompleteRequest& request, const std::optional<std::string>& own) {
  if (request.zone().empty() || !own.has_value() || request.zone() == *own) {
    return absl::OkStatus();
  }
  return FieldError("zone", absl::StrCat("\"", request.zone(), "\" is not served here: this is ",
                                         own->empty() ? "a worker of no zone"
                                                      : absl::StrCat("zone \"", *own, "\"")));
}

absl::Status CheckChoices(const v1::CompleteRequest& request) {
  if (request.has_n() && (request.n() == 0 || request.n() > kMaxChoices)) {
    return FieldError("n", absl::StrCat(request.n(), " is not from 1 to ", kMaxChoices));
  }
  if (request.logprobs() > kMaxLogprobs) {
    return FieldError("logprobs", absl::StrCat(request.logprobs(), " is above ", kMaxLogprobs));
  }
  return absl::OkStatus();
}

absl::Status CheckStopStrings(const v1::CompleteRequest& request) {
  for (int i = 0; i < request.stop_size(); ++i) {
    const std::string field = absl::StrCat("stop[", i, "]");
    const std::string& stop = request.stop(i);
    if (i >= kMaxStopStrings) {
      return FieldError(field, absl::StrCat("at most ", kMaxStopStrings, " stop strings"));
    }
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      return FieldError(field,
                        absl::StrCat("has ", stop.size(), " bytes, not 1 to ", kMaxStopBytes));
    }
    RETURN_IF_ERROR(CheckUtf8(field, stop));
  }
  return absl::OkStatus();
}

absl::Status CheckUtf8(std::string_view field, std::string_view text) {
  const std::optional<std::size_t> offset = FindInvalidUtf8(text);
  if (!offset.has_value()) {
    return absl::OkStatus();
  }
  return FieldError(field, absl::StrCat("is not UTF-8 at byte ", *offset));
}

absl::Status CheckRange(std::string_view field, float value, const Range& range) {
  // Written so that NaN fails.
  const bool above = range.low_excluded ? value > range.low : value >= range.low;
  if (above && value <= range.high) {
    return absl::OkStatus();
  }
  return FieldError(field, absl::StrCat(value, " is outside ", range.low_excluded ? "(" : "[",
                                        range.low, ", ", range.high, "]"));
}

absl::Status CheckLogitBias(const v1::Sampling& sampling, std::uint32_t vocabulary) {
  constexpr std::string_view kField = "sampling.logit_bias";
  if (sampling.logit_bias_size() > kMaxLogitBias) {
    return FieldError(kField, absl::StrCat("has ", sampling.logit_bias_size(), " entries; at most ",
                                           kMaxLogitBias));
  }
  for (const auto& [id, bias] : sampling.logit_bias()) {
    if (id >= vocabulary) {
      return FieldError(kField,
                        absl::StrCat("id ", id, " is not below the vocabulary size ", vocabulary));
    }
    if (!std::isfinite(bias)) {
      return FieldError(kField, absl::StrCat("the bias of id ", id, " is not finite"));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton
