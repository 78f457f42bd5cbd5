#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "google/protobuf/duration.pb.h"

namespace grpc {
class Status;
}  // namespace grpc

namespace baton {

// Details travel inside an absl::Status as payloads named by their type URL, so that the code
// between the place that knows the field and the RPC edge needs no gRPC.

// INVALID_ARGUMENT with a google.rpc.BadRequest that names `field` as in the proto
// ("sampling.temperature").
absl::Status FieldError(std::string_view field, std::string_view description);
// `status` with another code is made from a FieldError, e.g. NOT_FOUND for `model`.
absl::Status FieldError(absl::StatusCode code,
                        std::string_view field,
                        std::string_view description);

// `status` with a google.rpc.ErrorInfo of domain "baton" and this stable reason.
absl::Status WithReason(absl::Status status, std::string_view reason);
// `status` with a google.rpc.RetryInfo.
absl::Status WithRetryAfter(absl::Status status, std::chrono::milliseconds delay);

// What WithRetryAfter has set, or another server; nullopt when there is no RetryInfo.
std::optional<std::chrono::milliseconds> RetryAfter(const absl::Status& status);

// The field of the first violation; nullopt when there is no BadRequest.
std::optional<std::string> ViolatedField(const absl::Status& status);

// The reason of its ErrorInfo; empty without one.
std::string ReasonOf(const absl::Status& status);

// The RPC edge: code and message as they are, payloads as google.rpc.Status in the details, and
// back.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

google::protobuf::Duration ToProtoDuration(std::chrono::nanoseconds duration);
std::chrono::nanoseconds FromProtoDuration(const google::protobuf::Duration& duration);

}  // namespace baton
