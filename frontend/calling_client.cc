#include "frontend/calling_client.h"

#include <grpcpp/security/auth_context.h>
#include <grpcpp/server_context.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/trace_context.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

constexpr const char* kTenantKey = "x-baton-tenant";
constexpr const char* kTraceKey = "traceparent";
constexpr const char* kDefaultTenant = "default";
constexpr std::size_t kMostTenantBytes = 128;

std::optional<std::string> AuthenticatedIdentity(const grpc::CallbackServerContext& context) {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (auth == nullptr || !auth->IsPeerAuthenticated()) {
    return std::nullopt;
  }
  // Several when a certificate has several alternative names: the first stands for the client.
  const std::vector<grpc::string_ref> identity = auth->GetPeerIdentity();
  if (identity.empty() || identity.front().empty()) {
    return std::nullopt;
  }
  return std::string(identity.front().data(), identity.front().size());
}

absl::StatusOr<std::string> TenantOfMetadata(const grpc::CallbackServerContext& context) {
  const auto [first, last] = context.client_metadata().equal_range(kTenantKey);
  if (first == last) {
    return kDefaultTenant;
  }
  if (std::next(first) != last) {
    return FieldError(kTenantKey, "is given twice");
  }
  const std::string tenant(first->second.data(), first->second.size());
  if (tenant.empty() || tenant.size() > kMostTenantBytes) {
    return FieldError(kTenantKey,
                      absl::StrCat("has ", tenant.size(), " bytes, not 1 to ", kMostTenantBytes));
  }
  const bool visible = std::all_of(tenant.begin(), tenant.end(),
                                   [](char byte) { return byte > 0x20 && byte < 0x7f; });
  if (!visible) {
    return FieldError(kTenantKey, "has bytes that are no visible ASCII");
  }
  return tenant;
}

}  // namespace

absl::StatusOr<Caller> IdentifyCaller(const grpc::CallbackServerContext& context) {
  Caller caller;
  if (std::optional<std::string> identity = AuthenticatedIdentity(context)) {
    caller.tenant = *std::move(identity);
  } else {
    ASSIGN_OR_RETURN(caller.tenant, TenantOfMetadata(context));
  }
  const auto [first, last] = context.client_metadata().equal_range(kTraceKey);
  if (first != last && std::next(first) == last) {
    const std::optional<TraceContext> trace =
        TraceContext::Parse({first->second.data(), first->second.size()});
    caller.traceparent = trace.has_value() ? trace->ToString() : "";
  }
  return caller;
}

}  // namespace baton
