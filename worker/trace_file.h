#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/file.h"
#include "common/mailbox.h"
#include "engine/step_statistics.h"
#include "kernels/operation_times.h"

namespace baton {

// About 15,000 steps of a model with 30 layers.
inline constexpr std::size_t kMostTraceBytes = std::size_t{512} << 20;

struct TraceFileOptions {
  std::string process;                       // name shown for this process; letters, digits, '-'
  std::size_t most_bytes = kMostTraceBytes;  // then the trace ends, and a log line says so
  // Steps that may wait for the disk; one more is dropped, which the trace and the log say.
  std::size_t most_waiting_steps = 256;
};

// Writes every step as Chrome's Trace Event Format, an array of JSON objects, for chrome://tracing
// and Perfetto: one event a step, inside it one for the scheduling and one for each operation, and
// counters of blocks and sequences.
//
// Times are this machine's monotonic clock, so the traces of several workers of one machine can be
// put side by side. The array is complete after the destructor; a process that is killed leaves a
// file without the closing bracket, which the format permits.
//
// OnStep copies and posts; a thread of its own formats and writes. OnStep is called by one thread,
// and by none any more when the destructor runs.
class TraceFile final : public StepObserver {
 public:
  // Empties a file that is there. INVALID_ARGUMENT for something that is no regular file,
  // FAILED_PRECONDITION when another process writes a trace to it, else what the system says.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Create(const std::string& path,
                                                           TraceFileOptions options);
  // Writes what waits.
  ~TraceFile() override;
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  void OnStep(const StepStatistics& step) override;

  std::uint64_t dropped_steps() const { return dropped_.load(); }

 private:
  struct Record {
    StepStatistics step;  // without calls
    std::vector<OperationCall> calls;
    std::uint64_t dropped = 0;  // steps dropped before this one, since the start
  };

  TraceFile(std::string path, UniqueFd file, TraceFileOptions options);

  void Run();
  void Append(const Record& record);
  void Flush();
  // Only the first `part_bytes` of the buffer could be written.
  void Fail(int error, std::size_t part_bytes);
  void End();

  const std::string path_;
  const TraceFileOptions options_;
  Mailbox<Record> mailbox_;
  std::atomic<std::uint64_t> dropped_{0};
  std::atomic<bool> ended_{false};  // nothing more is written: full, or the disk failed

  // Writer thread only.
  const UniqueFd file_;
  std::string buffer_;             // whole events, not yet written
  std::size_t written_bytes_ = 0;  // in the file, whole events
  std::uint64_t dropped_told_ = 0;
  bool failed_ = false;

  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace baton
