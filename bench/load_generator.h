#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "bench/load_request.h"
#include "proto/tls_credentials.h"

namespace baton {

struct LoadProgress {
  Duration elapsed{};
  std::size_t sent = 0;
  std::size_t ended = 0;
  std::size_t failed = 0;
  std::size_t total = 0;
};

struct LoadGeneratorOptions {
  std::string server;  // host:port
  TlsFiles tls;
  PromptVocabulary vocabulary;
  Duration request_timeout = std::chrono::minutes(2);  // from the sending
  // A request that is due while so many are open fails unsent, with RESOURCE_EXHAUSTED: memory
  // stays bounded however slow the server is.
  std::size_t most_open = 16'384;
  std::function<void(const LoadProgress&)> progress;  // once a second, on the caller's thread
};

// Sends requests to a server at their times, whether or not earlier ones have been answered (open
// loop), and notes when each token comes. A request that is sent late, because this process was
// held up, still counts from the time it was due.
//
// Not thread-safe: Run keeps the time on the caller's thread; gRPC's threads note the answers.
class LoadGenerator {
 public:
  // Errors are those of the TLS files; connecting happens with the first Run.
  static absl::StatusOr<std::unique_ptr<LoadGenerator>> Create(LoadGeneratorOptions options);
  ~LoadGenerator();
  LoadGenerator(const LoadGenerator&) = delete;
  LoadGenerator& operator=(const LoadGenerator&) = delete;

  // Until every request has ended, at the latest by its timeout. The run starts when there is a
  // connection: UNAVAILABLE when there is none within `request_timeout`. What becomes of a request
  // is in its record.
  absl::StatusOr<LoadRun> Run(const Workload& workload);

 private:
  struct Connection;  // gRPC's
  LoadGenerator(LoadGeneratorOptions options, std::unique_ptr<Connection> connection);

  const LoadGeneratorOptions options_;
  const std::unique_ptr<Connection> connection_;
};

}  // namespace baton
