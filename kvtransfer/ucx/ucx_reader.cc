#include "kvtransfer/ucx/ucx_reader.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "common/byte_io.h"

namespace baton::ucx {
namespace {

constexpr std::size_t kKeyPaddingBytes = 4096;

}  // namespace

absl::Status UcxReader::Open(PeerId peer, std::string_view door, std::uint64_t pool_bytes) {
  Endpoint* endpoint = find_open_(peer);
  if (endpoint == nullptr) {
    return absl::FailedPreconditionError("the peer is not connected by RDMA");
  }
  ByteReader in(door);
  const std::optional<std::uint64_t> address = in.Get<std::uint64_t>();
  const std::optional<std::uint64_t> bytes = in.Get<std::uint64_t>();
  if (!bytes || in.remaining() == 0 || *bytes < pool_bytes || *address + *bytes < *address) {
    return absl::FailedPreconditionError(
        "the peer describes its pool in a way that is not known here");
  }
  if (const std::string carrier = CarrierOf(endpoint->handle); !carrier.starts_with("rc")) {
    return absl::FailedPreconditionError(
        absl::StrCat("the connection goes over ", carrier, ", not over RDMA"));
  }
  // UCX is not told how long the key is: what it reads beyond is zeros.
  std::string key(*in.GetBytes(in.remaining()));
  key.resize(key.size() + kKeyPaddingBytes, '\0');
  ucp_rkey_h handle = nullptr;
  const absl::Status unpacked =
      ToStatus(ucp_ep_rkey_unpack(endpoint->handle, key.data(), &handle), "unpack the pool's key");
  if (!unpacked.ok()) {
    return absl::FailedPreconditionError(std::string(unpacked.message()));
  }
  endpoint->pool_key.reset(handle);
  endpoint->pool_address = *address;
  endpoint->pool_bytes = pool_bytes;
  return absl::OkStatus();
}

absl::Status UcxReader::Read(PeerId peer, PoolRead read) {
  Endpoint* endpoint = find_open_(peer);
  if (endpoint == nullptr || endpoint->pool_key == nullptr) {
    return absl::UnavailableError("connection is closed");
  }
  for (const PoolRange& range : read.ranges) {
    const std::size_t bytes = range.destination.size();
    if (bytes > endpoint->pool_bytes || range.offset > endpoint->pool_bytes - bytes) {
      return absl::InvalidArgumentError("read outside of the peer's pool");
    }
  }
  reads_[read.token].gets = static_cast<int>(read.ranges.size());
  for (const PoolRange& range : read.ranges) {
    Operation& operation = StartOperation(events_, *endpoint, OperationKind::kGet, read.token);
    ucp_request_param_t params{};
    params.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    params.cb.send = &UcxEvents::OperationDone;
    params.user_data = &operation;
    params.memory_type = UCS_MEMORY_TYPE_HOST;
    Follow(events_, operation,
           ucp_get_nbx(endpoint->handle, range.destination.data(), range.destination.size(),
                       endpoint->pool_address + range.offset, endpoint->pool_key.get(), &params));
  }
  return absl::OkStatus();
}

void UcxReader::GetDone(PeerId peer, TransferToken token, const absl::Status& status) {
  const auto found = reads_.find(token);
  found->second.status.Update(status);
  if (--found->second.gets == 0) {
    const absl::Status outcome = found->second.status;
    reads_.erase(found);
    handler_.OnReceived(peer, token, outcome);
  }
}

}  // namespace baton::ucx
