#include "proto/status_conversion.h"

#include <grpcpp/support/status.h>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace baton {
namespace {

constexpr std::string_view kUrlPrefix = "type.googleapis.com/";

template <typename Detail>
std::string TypeUrl() {
  return absl::StrCat(std::string(kUrlPrefix), Detail::descriptor()->full_name());
}

template <typename Detail>
void Attach(absl::Status& status, const Detail& detail) {
  status.SetPayload(TypeUrl<Detail>(), absl::Cord(detail.SerializeAsString()));
}

}  // namespace

absl::Status FieldError(absl::StatusCode code,
                        std::string_view field,
                        std::string_view description) {
  absl::Status status(code, absl::StrCat(std::string(field), ": ", std::string(description)));
  google::rpc::BadRequest detail;
  auto* violation = detail.add_field_violations();
  violation->set_field(std::string(field));
  violation->set_description(std::string(description));
  Attach(status, detail);
  return status;
}

absl::Status FieldError(std::string_view field, std::string_view description) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, description);
}

absl::Status WithReason(absl::Status status, std::string_view reason) {
  google::rpc::ErrorInfo detail;
  detail.set_reason(std::string(reason));
  detail.set_domain("baton");
  Attach(status, detail);
  return status;
}

absl::Status WithRetryAfter(absl::Status status, std::chrono::milliseconds delay) {
  google::rpc::RetryInfo detail;
  *detail.mutable_retry_delay() = ToProtoDuration(delay);
  Attach(status, detail);
  return status;
}

std::optional<std::chrono::milliseconds> RetryAfter(const absl::Status& status) {
  const auto payload = status.GetPayload(TypeUrl<google::rpc::RetryInfo>());
  google::rpc::RetryInfo detail;
  if (!payload.has_value() || !detail.ParseFromString(std::string(*payload))) {
    return std::nullopt;
  }
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      FromProtoDuration(detail.retry_delay()));
}

std::optional<std::string> ViolatedField(const absl::Status& status) {
  const auto payload = status.GetPayload(TypeUrl<google::rpc::BadRequest>());
  google::rpc::BadRequest detail;
  if (!payload.has_value() || !detail.ParseFromString(std::string(*payload)) ||
      detail.field_violations().empty()) {
    return std::nullopt;
  }
  return detail.field_violations(0).field();
}

std::string ReasonOf(const absl::Status& status) {
  const auto payload = status.GetPayload(TypeUrl<google::rpc::ErrorInfo>());
  google::rpc::ErrorInfo detail;
  if (!payload.has_value() || !detail.ParseFromString(std::string(*payload))) {
    return "";
  }
  return detail.reason();
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) {
    return grpc::Status::OK;
  }
  google::rpc::Status rich;
  rich.set_code(static_cast<int>(status.code()));
  rich.set_message(std::string(status.message()));
  status.ForEachPayload([&rich](absl::string_view url, const absl::Cord& bytes) {
    auto* any = rich.add_details();
    any->set_type_url(std::string(url));
    any->set_value(std::string(bytes));
  });
  // absl::StatusCode and grpc::StatusCode have the same numbers.
  const auto code = static_cast<grpc::StatusCode>(status.code());
  return {code, std::string(status.message()),
          rich.details().empty() ? std::string() : rich.SerializeAsString()};
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) {
    return absl::OkStatus();
  }
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status rich;
  if (!status.error_details().empty() && rich.ParseFromString(status.error_details())) {
    for (const auto& any : rich.details()) {
      result.SetPayload(any.type_url(), absl::Cord(any.value()));
    }
  }
  return result;
}

google::protobuf::Duration ToProtoDuration(std::chrono::nanoseconds duration) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(duration);
  google::protobuf::Duration proto;
  proto.set_seconds(seconds.count());
  proto.set_nanos(static_cast<std::int32_t>((duration - seconds).count()));
  return proto;
}

std::chrono::nanoseconds FromProtoDuration(const google::protobuf::Duration& duration) {
  return std::chrono::seconds(duration.seconds()) + std::chrono::nanoseconds(duration.nanos());
}

}  // namespace baton
