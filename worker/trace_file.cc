#include "worker/trace_file.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace baton {
namespace {

constexpr std::size_t kWriteBytes = 256 << 10;
constexpr int kEngineThread = 1;  // tid of everything: there is one engine thread
constexpr std::string_view kEnd = "\n]\n";

int ProcessId() {
  static const int id = getpid();  // a system call each time otherwise
  return id;
}

// Microseconds with three decimals: every nanosecond of the clock.
std::string Microseconds(std::chrono::nanoseconds time) {
  const std::int64_t count = time.count();
  return absl::StrCat(count / 1000, ".", absl::Dec(count % 1000, absl::kZeroPad3));
}

std::string Timestamp(TimePoint time) {
  return Microseconds(time.time_since_epoch());
}

// `{"ph":...,"pid":...,"tid":...,"ts":...` of an event that is not the first of the file.
void BeginEvent(std::string& out, const char* phase, TimePoint time) {
  absl::StrAppend(&out, ",\n{\"ph\":\"", phase, "\",\"pid\":", ProcessId(),
                  ",\"tid\":", kEngineThread, ",\"ts\":", Timestamp(time));
}

// The names are ours: none needs escaping.
void BeginSpan(std::string& out,
               const char* category,
               std::string_view name,
               TimePoint start,
               Duration duration) {
  BeginEvent(out, "X", start);
  absl::StrAppend(&out, ",\"dur\":", Microseconds(duration), ",\"cat\":\"", category,
                  "\",\"name\":\"", std::string(name), "\"");
}

void AppendHeader(std::string& out, const std::string& process) {
  const auto metadata = [](const char* kind, const std::string& name) {
    return absl::StrCat("{\"ph\":\"M\",\"pid\":", ProcessId(), ",\"tid\":", kEngineThread,
                        ",\"name\":\"", kind, "\",\"args\":{\"name\":\"", name, "\"}}");
  };
  absl::StrAppend(&out, "[\n", metadata("process_name", process), ",\n",
                  metadata("thread_name", "engine"));
}

std::string_view StepName(const StepStatistics& step) {
  if (step.rows() == 0) {
    return "no rows";
  }
  if (step.decode_rows == 0) {
    return "prefill";
  }
  return step.prefill_rows == 0 ? "decode" : "prefill and decode";
}

void AppendStep(std::string& out, const StepStatistics& step) {
  BeginSpan(out, "step", StepName(step), step.start, step.duration);
  absl::StrAppend(&out, ",\"args\":{\"prefill_rows\":", step.prefill_rows,
                  ",\"decode_rows\":", step.decode_rows,
                  ",\"prefilled_tokens\":", step.prefilled_tokens,
                  ",\"sampled_tokens\":", step.sampled_tokens);
  absl::StrAppend(&out, ",\"cached_tokens\":", step.cached_tokens,
                  ",\"preempted\":", step.preempted, ",\"running\":", step.running,
                  ",\"waiting\":", step.waiting, ",\"free_blocks\":", step.free_blocks, "}}");
  BeginSpan(out, "step", "schedule", step.start, step.scheduling);
  out += '}';
}

void AppendCall(std::string& out, const OperationCall& call) {
  BeginSpan(out, "operation", OperationName(call.operation), call.start, call.duration);
  if (call.rows > 0) {
    absl::StrAppend(&out, ",\"args\":{\"rows\":", call.rows);
    if (call.weight_rows > 0) {
      absl::StrAppend(&out, ",\"weight\":\"", call.weight_rows, "x", call.weight_columns, "\"");
    }
    out += '}';
  }
  out += '}';
}

// Spans overlap, so they are asynchronous events: a beginning and an end of one id.
void AppendSpan(std::string& out, const Span& span, std::string_view process) {
  const std::string id = SpanIdHex(span.context);
  const auto append = [&](const char* phase, TimePoint time) {
    BeginEvent(out, phase, time);
    absl::StrAppend(&out, ",\"cat\":\"span\",\"id\":\"0x", id, "\",\"name\":\"",
                    std::string(span.name), "\"");
  };
  append("b", span.start);
  absl::StrAppend(&out, ",\"args\":", ToJsonLine(span, process), "}");
  append("e", span.end);
  out += '}';
}

// A line of its own.
void AppendStepLine(std::string& out, const StepStatistics& step, std::string_view process) {
  absl::StrAppend(&out, "{\"kind\":\"step\",\"service\":\"", std::string(process),
                  "\",\"start_time_unix_nano\":", UnixNanoseconds(step.start),
                  ",\"duration_ns\":", step.duration.count(),
                  ",\"scheduling_ns\":", step.scheduling.count());
  absl::StrAppend(&out, ",\"prefill_rows\":", step.prefill_rows,
                  ",\"decode_rows\":", step.decode_rows,
                  ",\"sampled_tokens\":", step.sampled_tokens, ",\"preempted\":", step.preempted,
                  ",\"running\":", step.running);
  absl::StrAppend(&out, ",\"waiting\":", step.waiting, ",\"free_blocks\":", step.free_blocks,
                  "}\n");
}

void AppendCounters(std::string& out, const StepStatistics& step) {
  const TimePoint end = step.start + step.duration;
  BeginEvent(out, "C", end);
  absl::StrAppend(&out, ",\"name\":\"free blocks\",\"args\":{\"blocks\":", step.free_blocks, "}}");
  BeginEvent(out, "C", end);
  absl::StrAppend(&out, ",\"name\":\"sequences\",\"args\":{\"running\":", step.running,
                  ",\"waiting\":", step.waiting, "}}");
}

}  // namespace

absl::StatusOr<std::unique_ptr<TraceFile>> TraceFile::Create(const std::string& path,
                                                             TraceFileOptions options) {
  ASSIGN_OR_RETURN(UniqueFd file, OpenTraceFile(path));
  LogEvent(LogLevel::kInfo, "trace.started", {{"path", path}, {"most_bytes", options.most_bytes}});
  return std::unique_ptr<TraceFile>(new TraceFile(path, std::move(file), std::move(options)));
}

TraceFile::TraceFile(std::string path, UniqueFd file, TraceFileOptions options)
    : path_(std::move(path)),
      options_(std::move(options)),
      mailbox_(options_.most_waiting_steps),
      file_(std::move(file)) {
  thread_ = std::jthread([this] { Run(); });
}

TraceFile::~TraceFile() {
  mailbox_.Close();
}

void TraceFile::OnStep(const StepStatistics& step) {
  if (ended_.load(std::memory_order_relaxed)) {
    return;
  }
  StepRecord record{.step = step, .dropped = dropped_.load(std::memory_order_relaxed)};
  if (keeps_operations()) {
    record.calls.assign(step.calls.begin(), step.calls.end());
  }
  record.step.calls = {};
  if (!mailbox_.Push(std::move(record)).ok()) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
  }
}

void TraceFile::Record(Span span) {
  if (ended_.load(std::memory_order_relaxed)) {
    return;
  }
  if (!mailbox_.Push(std::move(span)).ok()) {
    dropped_spans_.fetch_add(1, std::memory_order_relaxed);
  }
}

void TraceFile::Run() {
  if (!options_.json_lines) {
    AppendHeader(buffer_, options_.process);
  }
  bool last = false;
  while (!last && !ended_.load()) {
    last = mailbox_.closed();  // asked first: what was pushed before the end is taken below
    for (const Entry& entry : mailbox_.PopAll(last ? absl::ZeroDuration() : absl::Seconds(1))) {
      Append(entry);
      if (buffer_.size() >= kWriteBytes) {
        Flush();
      }
    }
    Flush();
  }
  End();
  LogEvent(LogLevel::kInfo, "trace.ended",
           {{"path", path_},
            {"bytes", written_bytes_},
            {"dropped_steps", dropped_.load()},
            {"dropped_spans", dropped_spans_.load()}});
}

void TraceFile::Append(const Entry& entry) {
  if (ended_.load()) {
    return;
  }
  const std::size_t before = buffer_.size();
  if (const auto* span = std::get_if<Span>(&entry); span == nullptr) {
    Append(std::get<StepRecord>(entry));
  } else if (options_.json_lines) {
    absl::StrAppend(&buffer_, ToJsonLine(*span, options_.process), "\n");
  } else {
    AppendSpan(buffer_, *span, options_.process);
  }
  if (written_bytes_ + buffer_.size() + kEnd.size() > options_.most_bytes) {
    buffer_.resize(before);
    ended_.store(true);
    LogEvent(LogLevel::kWarn, "trace.full", {{"path", path_}, {"most_bytes", options_.most_bytes}});
  }
}

void TraceFile::Append(const StepRecord& record) {
  const std::uint64_t newly_dropped = record.dropped - dropped_told_;
  if (newly_dropped > 0 && dropped_told_ == 0) {
    LogEvent(LogLevel::kWarn, "trace.steps_dropped",
             {{"path", path_}, {"why", "writing does not keep up with the engine"}});
  }
  dropped_told_ = record.dropped;
  if (options_.json_lines) {
    if (newly_dropped > 0) {
      absl::StrAppend(&buffer_, "{\"kind\":\"steps_dropped\",\"steps\":", newly_dropped, "}\n");
    }
    AppendStepLine(buffer_, record.step, options_.process);
    return;
  }
  if (newly_dropped > 0) {
    BeginEvent(buffer_, "i", record.step.start);
    absl::StrAppend(&buffer_,
                    ",\"s\":\"t\",\"name\":\"steps dropped\",\"args\":{\"steps\":", newly_dropped,
                    "}}");
  }
  AppendStep(buffer_, record.step);
  for (const OperationCall& call : record.calls) {
    AppendCall(buffer_, call);
  }
  AppendCounters(buffer_, record.step);
}

void TraceFile::Flush() {
  std::string_view rest = buffer_;
  while (!rest.empty()) {
    const ssize_t count = write(file_.get(), rest.data(), rest.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      Fail(errno, buffer_.size() - rest.size());
      return;
    }
    rest.remove_prefix(static_cast<std::size_t>(count));
  }
  written_bytes_ += buffer_.size();
  buffer_.clear();
}

void TraceFile::Fail(int error, std::size_t part_bytes) {
  if (!failed_) {
    LogEvent(LogLevel::kWarn, "trace.failed",
             {{"path", path_}, {"status", absl::ErrnoToStatus(error, "write")}});
  }
  failed_ = true;
  ended_.store(true);
  // Cut before the event that is there in part: events are one a line, in an array with a comma
  // before the line's start, else with the line's end.
  const std::size_t cut =
      options_.json_lines
          ? part_bytes == 0 ? std::string::npos : buffer_.rfind('\n', part_bytes - 1)
          : buffer_.rfind(",\n", part_bytes);
  written_bytes_ += cut == std::string::npos ? 0 : cut + (options_.json_lines ? 1 : 0);
  buffer_.clear();
  (void)!ftruncate(file_.get(), static_cast<off_t>(written_bytes_));
  (void)lseek(file_.get(), static_cast<off_t>(written_bytes_), SEEK_SET);
}

void TraceFile::End() {
  Flush();
  if (written_bytes_ > 0 && !options_.json_lines) {
    buffer_ = kEnd;
    Flush();
  }
}

}  // namespace baton
