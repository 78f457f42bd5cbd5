#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/mailbox.h"
#include "common/trace_context.h"

namespace baton {

// One unit of work of a traced request, after its end.
struct Span {
  using Value = std::variant<std::string, std::int64_t, double>;

  TraceContext context;
  std::optional<std::array<std::uint8_t, 8>> parent;  // span id; nullopt: the trace begins here
  std::string_view name;                              // a literal: "router.request"
  TimePoint start;
  TimePoint end;
  absl::Status status;
  std::vector<std::pair<std::string_view, Value>> attributes;  // names are literals
};

// Takes finished spans. Thread-safe; does not block.
class SpanSink {
 public:
  virtual ~SpanSink() = default;
  virtual void Record(Span span) = 0;
};

// A unit of work under way, below whoever sent `traceparent`; a trace of its own when that is
// empty or malformed. With a null sink nothing is recorded and `traceparent` is passed on as it
// is. Not thread-safe.
class OpenSpan {
 public:
  OpenSpan() = default;
  OpenSpan(SpanSink* sink, std::string_view name, const std::string& traceparent);

  // For those that this work asks for more.
  const std::string& traceparent() const { return traceparent_; }
  bool recorded() const { return sink_ != nullptr; }
  void set_start(TimePoint start) { span_.start = start; }
  void Add(std::string_view name, Span::Value value);
  // Records it. Once; later calls have no effect.
  void End(const absl::Status& status);
  // The same, for work that ended before.
  void EndAt(TimePoint end, const absl::Status& status);

 private:
  SpanSink* sink_ = nullptr;  // null: not recorded, or ended
  Span span_;
  std::string traceparent_;
};

// One line, without its end: {"kind":"span","trace_id":...,"span_id":...,"parent_span_id":...,
// "service":...,"name":...,"start_time_unix_nano":...,"end_time_unix_nano":...,"status":"OK",
// "attributes":{...}}; "parent_span_id" only with a parent, "message" only with a status that is
// not OK. Ids are hex digits, times whole numbers of the wall clock. Text that is not UTF-8 is
// repaired.
std::string ToJsonLine(const Span& span, std::string_view service);

// The wall clock's nanoseconds since 1970: traces are put together from several processes, which
// share no monotonic clock.
std::int64_t UnixNanoseconds(TimePoint time);

// 16 digits.
std::string SpanIdHex(const TraceContext& context);

// The file at `path`, emptied, for this process to write to. INVALID_ARGUMENT for something that
// is no regular file, FAILED_PRECONDITION when another process writes to it, else what the system
// says.
absl::StatusOr<UniqueFd> OpenTraceFile(const std::string& path);

// Writes every span as one line of JSON. A thread of its own writes; what does not fit into its
// queue or the file is dropped, which the log says. Thread-safe.
class SpanFile final : public SpanSink {
 public:
  struct Options {
    std::string service;                              // name of this process
    std::size_t most_bytes = std::size_t{512} << 20;  // then nothing more is written
    std::size_t most_waiting = 4096;                  // spans
  };

  // Errors are those of OpenTraceFile.
  static absl::StatusOr<std::unique_ptr<SpanFile>> Create(const std::string& path, Options options);
  // Writes what waits.
  ~SpanFile() override;
  SpanFile(const SpanFile&) = delete;
  SpanFile& operator=(const SpanFile&) = delete;

  void Record(Span span) override;

 private:
  SpanFile(std::string path, UniqueFd file, Options options);

  void Run();
  // False, and nothing more is written, when the disk refuses.
  bool Write(std::string_view text);

  const std::string path_;
  const Options options_;
  Mailbox<Span> mailbox_;
  std::atomic<std::uint64_t> dropped_{0};
  const UniqueFd file_;            // writer thread only
  std::size_t written_bytes_ = 0;  // likewise
  std::jthread thread_;            // last: it uses all of the above
};

}  // namespace baton
