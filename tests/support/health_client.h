#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

namespace baton {

// What grpc.health.v1.Health.Check says of `service`: "SERVING", "NOT_SERVING", "UNKNOWN", or the
// status code's number in brackets. The two messages have one field each, so they are written and
// read by hand.
inline std::string HealthOf(const std::shared_ptr<grpc::Channel>& channel,
                            const std::string& service) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  std::string encoded;
  if (!service.empty()) {
    encoded.push_back('\x0a');
    encoded.push_back(static_cast<char>(service.size()));
    encoded.append(service);
  }
  const grpc::Slice slice(encoded);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::Status status;
  absl::Notification done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request, &response,
                 [&](grpc::Status result) {
                   status = std::move(result);
                   done.Notify();
                 });
  done.WaitForNotification();
  if (!status.ok()) {
    return absl::StrCat("(", status.error_code(), ")");
  }
  grpc::Slice answer;
  if (!response.DumpToSingleSlice(&answer).ok() || answer.size() != 2) {
    return "UNKNOWN";
  }
  return answer.begin()[1] == 1 ? "SERVING" : answer.begin()[1] == 2 ? "NOT_SERVING" : "UNKNOWN";
}

}  // namespace baton
