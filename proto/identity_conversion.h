#pragma once

#include "absl/status/statusor.h"
#include "baton/v1/worker.pb.h"
#include "common/kv_layout.h"

namespace baton {

v1::EngineIdentity ToProto(const EngineIdentity& identity);
// INVALID_ARGUMENT when a fingerprint has not 32 bytes or a count is not positive.
absl::StatusOr<EngineIdentity> FromProto(const v1::EngineIdentity& proto);

}  // namespace baton
