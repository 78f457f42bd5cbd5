#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/file.h"
#include "common/mailbox.h"
#include "common/span_log.h"
#include "engine/step_statistics.h"
#include "kernels/operation_times.h"

namespace baton {

// About 15,000 steps of a model with 30 layers.
inline constexpr std::size_t kMostTraceBytes = std::size_t{512} << 20;

struct TraceFileOptions {
  std::string process;                       // name shown for this process; letters, digits, '-'
  std::size_t most_bytes = kMostTraceBytes;  // then the trace ends, and a log line says so
  // Steps and spans that may wait for the disk; one more is dropped, which the trace and the log
  // say.
  std::size_t most_waiting_steps = 256;
  bool json_lines = false;  // see TraceFile
};

// Writes every step, and the spans of requests, as Chrome's Trace Event Format, an array of JSON
// objects, for chrome://tracing and Perfetto: one event a step, inside it one for the scheduling
// and one for each operation, and counters of blocks and sequences; spans as asynchronous events,
// whose arguments are the span as ToJsonLine gives it.
//
// With `json_lines` as lines of JSON instead: `"kind":"step"` without its operations, and
// `"kind":"span"` (common/span_log.h). A hundredth of the size, and what span collectors read.
//
// Times are this machine's monotonic clock, so the traces of several workers of one machine can be
// put side by side. The array is complete after the destructor; a process that is killed leaves a
// file without the closing bracket, which the format permits.
//
// OnStep copies and posts; a thread of its own formats and writes. OnStep is called by one thread,
// and by none any more when the destructor runs; Record is thread-safe.
class TraceFile final : public StepObserver, public SpanSink {
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
  void Record(Span span) override;

  // Whether the calls of a step are of any use.
  bool keeps_operations() const { return !options_.json_lines; }
  std::uint64_t dropped_steps() const { return dropped_.load(); }

 private:
  struct StepRecord {
    StepStatistics step;  // without calls
    std::vector<OperationCall> calls;
    std::uint64_t dropped = 0;  // steps dropped before this one, since the start
  };

  using Entry = std::variant<StepRecord, Span>;

  TraceFile(std::string path, UniqueFd file, TraceFileOptions options);

  void Run();
  void Append(const Entry& entry);
  void Append(const StepRecord& record);
  void Flush();
  // Only the first `part_bytes` of the buffer could be written.
  void Fail(int error, std::size_t part_bytes);
  void End();

  const std::string path_;
  const TraceFileOptions options_;
  Mailbox<Entry> mailbox_;
  std::atomic<std::uint64_t> dropped_{0};  // steps
  std::atomic<std::uint64_t> dropped_spans_{0};
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
