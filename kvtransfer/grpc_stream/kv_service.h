#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kvtransfer/grpc_stream/stream.h"
#include "proto/tls_credentials.h"

namespace baton::grpc_stream {

// The listener of the transport. Its streams show up in the inbox. Thread-safe.
class KvServer {
 public:
  // `listen` is host:port, 0 a free port. UNAVAILABLE when it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<KvServer>> Start(const std::string& listen,
                                                         const TlsFiles& tls,
                                                         std::shared_ptr<StreamInbox> inbox);
  // Waits for the end of every stream: each must have been finished.
  virtual ~KvServer() = default;

  virtual int port() const = 0;
  // Takes no more streams and cancels those there are.
  virtual void Shutdown() = 0;
};

// Connects to other workers. Not thread-safe: used only by the transfer thread.
class KvClient {
 public:
  static absl::StatusOr<std::unique_ptr<KvClient>> Create(const TlsFiles& tls,
                                                          std::shared_ptr<StreamInbox> inbox);
  virtual ~KvClient() = default;

  struct Made {
    std::uint64_t number = 0;
    Stream* stream = nullptr;
  };
  // Returns at once; a peer that cannot be reached is told by kDone.
  virtual Made Connect(const std::string& host_port) = 0;
};

}  // namespace baton::grpc_stream
