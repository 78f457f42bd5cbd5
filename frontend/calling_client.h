#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace grpc {
class CallbackServerContext;
}  // namespace grpc

namespace baton {

// Who calls, and within which trace.
struct Caller {
  std::string tenant;
  std::string traceparent;  // W3C; empty: none was sent, or none that can be read
};

// The tenant is the client's authenticated identity (of its certificate, under mutual TLS), else
// metadata `x-baton-tenant` of 1 to 128 visible ASCII bytes, else "default". INVALID_ARGUMENT,
// field `x-baton-tenant`, for any other value of it, or for two; not looked at when there is an
// identity. A `traceparent` that breaks W3C's form is taken as absent, as W3C asks for.
absl::StatusOr<Caller> IdentifyCaller(const grpc::CallbackServerContext& context);

}  // namespace baton
