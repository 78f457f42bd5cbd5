#include "kvtransfer/ucx/ucx_handles.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kvtransfer/ucx/ucx_transport.h"

namespace baton::ucx {

absl::Status ToStatus(ucs_status_t status, const std::string& what) {
  const std::string message = absl::StrCat(what, ": ", ucs_status_string(status));
  switch (status) {
    case UCS_OK:
      return absl::OkStatus();
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_EXCEEDS_LIMIT:
      return absl::ResourceExhaustedError(message);
    case UCS_ERR_CANCELED:
      return absl::CancelledError(message);
    case UCS_ERR_NO_DEVICE:
    case UCS_ERR_UNSUPPORTED:
      return absl::FailedPreconditionError(message);
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
      return absl::InvalidArgumentError(message);
    case UCS_ERR_BUSY:
      return absl::AlreadyExistsError(message);
    default:
      return absl::UnavailableError(message);
  }
}

absl::StatusOr<UcpMemory> UcpMemory::Map(ucp_context_h context,
                                         void* base,
                                         std::size_t size_bytes) {
  const ucp_mem_map_params_t params{
      .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                    UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
      .address = base,
      .length = size_bytes,
      .memory_type = UCS_MEMORY_TYPE_HOST,
  };
  ucp_mem_h memory = nullptr;
  RETURN_IF_ERROR(
      ToStatus(ucp_mem_map(context, &params, &memory), "register the block pool with UCX"));
  return UcpMemory(context, memory);
}

UcpMemory& UcpMemory::operator=(UcpMemory&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(memory_, other.memory_);
  return *this;
}

UcpMemory::~UcpMemory() {
  if (memory_ != nullptr) {
    ucp_mem_unmap(context_, memory_);
  }
}

absl::StatusOr<std::string> UcpMemory::PackKey() const {
  void* buffer = nullptr;
  std::size_t bytes = 0;
  RETURN_IF_ERROR(ToStatus(ucp_rkey_pack(context_, memory_, &buffer, &bytes),
                           "pack the key of the block pool"));
  std::string key(static_cast<const char*>(buffer), bytes);
  ucp_rkey_buffer_release(buffer);
  return key;
}

namespace {

bool HasDefaultTransports() {
  const char* set = std::getenv("UCX_TLS");
  return set != nullptr && set == DefaultTransports();
}

}  // namespace

absl::Status CheckUsable() {
  return MakeContext(Lanes::kAny).status();
}

absl::StatusOr<UcpContext> MakeContext(Lanes lanes) {
  ucp_config_t* config = nullptr;
  RETURN_IF_ERROR(
      ToStatus(ucp_config_read(nullptr, nullptr, &config), "read the UCX configuration"));
  // Over TCP and shared memory UCX would write wherever a peer says: never with remote access.
  const bool rdma = lanes == Lanes::kRdma;
  if (rdma || (lanes == Lanes::kTcp && HasDefaultTransports())) {
    const std::string left = rdma ? ReliableTransports() : "tcp";
    const ucs_status_t narrowed = ucp_config_modify(config, "TLS", left.c_str());
    if (narrowed != UCS_OK) {
      ucp_config_release(config);
      return ToStatus(narrowed, absl::StrCat("leave UCX nothing but ", left));
    }
  }
  const ucp_params_t params{
      .field_mask = UCP_PARAM_FIELD_FEATURES,
      .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP |
                  (rdma ? std::uint64_t{UCP_FEATURE_RMA} : std::uint64_t{0}),
  };
  ucp_context_h context = nullptr;
  const ucs_status_t status = ucp_init(&params, config, &context);
  ucp_config_release(config);
  RETURN_IF_ERROR(ToStatus(status, "start UCX"));
  return UcpContext(context);
}

absl::StatusOr<UcpWorker> MakeWorker(ucp_context_h context) {
  const ucp_worker_params_t params{
      .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
      .thread_mode = UCS_THREAD_MODE_SINGLE,
  };
  ucp_worker_h worker = nullptr;
  RETURN_IF_ERROR(ToStatus(ucp_worker_create(context, &params, &worker), "make a UCX worker"));
  return UcpWorker(worker);
}

absl::StatusOr<SocketAddress> SocketAddress::Make(const std::string& host, int port, bool resolve) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (resolve ? 0 : AI_NUMERICHOST);
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("address \"", host, "\": ", gai_strerror(error)));
  }
  // A name may have both kinds; UCX 1.13 looks for IPv4 devices first.
  const addrinfo* chosen = found;
  for (const addrinfo* one = found; one != nullptr && chosen->ai_family != AF_INET;
       one = one->ai_next) {
    chosen = one->ai_family == AF_INET ? one : chosen;
  }
  sockaddr_storage storage{};
  std::memcpy(&storage, chosen->ai_addr, chosen->ai_addrlen);
  freeaddrinfo(found);
  return SocketAddress(storage);
}

absl::StatusOr<SocketAddress> SocketAddress::Parse(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  int port = 0;
  const char* end = address.data() + address.size();
  if (colon == std::string::npos ||
      std::from_chars(address.data() + colon + 1, end, port).ptr != end || port <= 0 ||
      port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("address \"", address, "\" is not host:port"));
  }
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return Make(host, port, /*resolve=*/false);
}

std::string SocketAddress::host() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (storage_.ss_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr, text,
              sizeof(text));
  } else {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr, text,
              sizeof(text));
  }
  return text;
}

int SocketAddress::port() const {
  return ntohs(storage_.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
}

ucs_sock_addr_t SocketAddress::ForUcx() const {
  return {.addr = reinterpret_cast<const sockaddr*>(&storage_),
          .addrlen = static_cast<socklen_t>(storage_.ss_family == AF_INET6 ? sizeof(sockaddr_in6)
                                                                           : sizeof(sockaddr_in))};
}

std::string JoinHostPort(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port)
                                             : absl::StrCat("[", host, "]:", port);
}

// UCX 1.13 has no query for this; its printed form has lines like "lane[2]:  1:tcp/lo.0 md[0] ->
// ... am am_bw#0". The lane that carries active messages is the one with the word "am"; "cm" lanes
// only set connections up.
std::string CarrierOf(ucp_ep_h endpoint) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* stream = open_memstream(&text, &size);
  if (stream == nullptr) {
    return "unknown";
  }
  ucp_ep_print_info(endpoint, stream);
  std::fclose(stream);
  const std::string info(text, size);
  std::free(text);

  std::size_t start = 0;
  while ((start = info.find("lane[", start)) != std::string::npos) {
    const std::size_t line_end = std::min(info.find('\n', start), info.size());
    const std::string line = info.substr(start, line_end - start) + " ";
    start = line_end;
    const std::size_t colon =
        line.find(':', line.find(':') + 1);  // "lane[n]:  <index>:<transport>/<device>"
    const std::size_t slash = line.find('/', colon == std::string::npos ? 0 : colon);
    if (line.find(" am ") != std::string::npos && colon != std::string::npos &&
        slash != std::string::npos) {
      return line.substr(colon + 1, slash - colon - 1);
    }
  }
  return "unknown";
}

}  // namespace baton::ucx
