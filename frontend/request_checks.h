#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "baton/v1/completions.pb.h"

namespace baton {

// The checks of a CompleteRequest that need no model. Each returns OK or INVALID_ARGUMENT with the
// field as in the proto.

// Of any request: no field number and no enum value that this build does not know, here or in a
// nested message. The field is named by its path, an unknown one by its number: "sampling.#12".
absl::Status CheckNoUnknownFields(const google::protobuf::Message& request);

// request_id, session, zone and cache_salt: at most 128 bytes.
absl::Status CheckFieldLengths(const v1::CompleteRequest& request);

// `own` is the only zone that is served; nullopt: the generator knows which ones are. A request
// that names no zone may be served anywhere.
absl::Status CheckZone(const v1::CompleteRequest& request, const std::optional<std::string>& own);

// n: from 1 to 16; logprobs: at most 20.
absl::Status CheckChoices(const v1::CompleteRequest& request);

// At most 16, each of 1 to 256 bytes of UTF-8 (the text they are searched in is always UTF-8).
absl::Status CheckStopStrings(const v1::CompleteRequest& request);

absl::Status CheckUtf8(std::string_view field, std::string_view text);

// [low, high], or (low, high] when `low_excluded`. NaN is never inside.
struct Range {
  float low = 0;
  float high = 0;
  bool low_excluded = false;
};
absl::Status CheckRange(std::string_view field, float value, const Range& range);

absl::Status CheckLogitBias(const v1::Sampling& sampling, std::uint32_t vocabulary);

}  // namespace baton
