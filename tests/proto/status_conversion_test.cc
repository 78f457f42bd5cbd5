#include "proto/status_conversion.h"

#include <grpcpp/support/status.h>
#include <gtest/gtest.h>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace baton {
namespace {

TEST(StatusConversion, CodesHaveTheSameNumbers) {
  EXPECT_EQ(static_cast<int>(absl::StatusCode::kCancelled), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(static_cast<int>(absl::StatusCode::kInvalidArgument),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(static_cast<int>(absl::StatusCode::kResourceExhausted),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(static_cast<int>(absl::StatusCode::kUnauthenticated),
            grpc::StatusCode::UNAUTHENTICATED);
}

TEST(StatusConversion, DetailsSurviveTheWire) {
  const absl::Status sent =
      WithRetryAfter(WithReason(FieldError("sampling.temperature", "is NaN"), "BAD_FIELD"),
                     std::chrono::milliseconds(1500));

  const grpc::Status wire = ToGrpcStatus(sent);
  const absl::Status back = FromGrpcStatus(wire);

  EXPECT_EQ(wire.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(wire.error_message(), "sampling.temperature: is NaN");
  EXPECT_EQ(back, sent);
  EXPECT_EQ(ViolatedField(back), "sampling.temperature");
  google::rpc::Status rich;
  ASSERT_TRUE(rich.ParseFromString(wire.error_details()));
  ASSERT_EQ(rich.details_size(), 3);
  google::rpc::RetryInfo retry;
  for (const auto& any : rich.details()) {
    any.UnpackTo(&retry);
  }
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
  EXPECT_EQ(retry.retry_delay().nanos(), 500000000);
}

TEST(StatusConversion, OkStaysOkAndGarbageDetailsAreDropped) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
  const absl::Status status =
      FromGrpcStatus(grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone", "\xff\xff not a proto"));
  EXPECT_EQ(status, absl::UnavailableError("gone"));
}

}  // namespace
}  // namespace baton
