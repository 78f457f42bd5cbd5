#pragma once

#include <sys/socket.h>
#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvtransfer/ucx/ucx_transport.h"

// Owners of UCX handles. Private to this folder: only its sources see UCX headers.
namespace baton::ucx {

// "<what>: <UCX's words>". Whatever a lost peer looks like to UCX is UNAVAILABLE: the same kill
// shows as several codes.
absl::Status ToStatus(ucs_status_t status, const std::string& what);

struct DestroyContext {
  void operator()(ucp_context_h context) const { ucp_cleanup(context); }
};
using UcpContext = std::unique_ptr<ucp_context, DestroyContext>;

// Destruction closes the worker's endpoints; callbacks of their requests run meanwhile.
struct DestroyWorker {
  void operator()(ucp_worker_h worker) const { ucp_worker_destroy(worker); }
};
using UcpWorker = std::unique_ptr<ucp_worker, DestroyWorker>;

struct DestroyListener {
  void operator()(ucp_listener_h listener) const { ucp_listener_destroy(listener); }
};
using UcpListener = std::unique_ptr<ucp_listener, DestroyListener>;

// Memory registered with a context. Move-only.
class UcpMemory {
 public:
  static absl::StatusOr<UcpMemory> Map(ucp_context_h context, void* base, std::size_t size_bytes);
  UcpMemory(UcpMemory&& other) noexcept
      : context_(other.context_), memory_(std::exchange(other.memory_, nullptr)) {}
  UcpMemory& operator=(UcpMemory&& other) noexcept;
  ~UcpMemory();

  // What a peer needs to read it; opaque to all but its UCX.
  absl::StatusOr<std::string> PackKey() const;

 private:
  UcpMemory(ucp_context_h context, ucp_mem_h memory) : context_(context), memory_(memory) {}

  ucp_context_h context_;  // outlives this
  ucp_mem_h memory_;
};

// The key to a peer's memory. Destroyed when nothing uses it any more, before its worker.
struct DestroyKey {
  void operator()(ucp_rkey_h key) const { ucp_rkey_destroy(key); }
};
using UcpRemoteKey = std::unique_ptr<ucp_rkey, DestroyKey>;

// UCX's names of reliable connections over the RDMA devices here. With a backslash they stand for
// themselves: "rc" would bring the datagrams of `ud` along, to ask peers whether they live (which
// our heartbeats do), and UCX 1.13 ends the process when the link goes down under one of those.
std::string ReliableTransports();
// UCX_TLS as SetDefaults presets it.
std::string DefaultTransports();

// Remote memory access with kRdma alone.
absl::StatusOr<UcpContext> MakeContext(Lanes lanes);
absl::StatusOr<UcpWorker> MakeWorker(ucp_context_h context);

// An IPv4 or IPv6 address with a port.
class SocketAddress {
 public:
  // `host` may be a name only when `resolve`: looking one up can take long.
  static absl::StatusOr<SocketAddress> Make(const std::string& host, int port, bool resolve);
  // "127.0.0.1:80" or "[::1]:80".
  static absl::StatusOr<SocketAddress> Parse(const std::string& address);
  explicit SocketAddress(const sockaddr_storage& storage) : storage_(storage) {}

  std::string host() const;
  int port() const;
  ucs_sock_addr_t ForUcx() const;

 private:
  sockaddr_storage storage_{};
};

std::string JoinHostPort(const std::string& host, int port);

// What carries an endpoint's messages, from UCX's own description: "tcp", "rc_verbs", "posix".
std::string CarrierOf(ucp_ep_h endpoint);

}  // namespace baton::ucx
