#include "common/span_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/log.h"
#include "common/sha256.h"

namespace baton {
namespace {

template <std::size_t N>
std::string Hex(const std::array<std::uint8_t, N>& bytes) {
  return ToHex(std::string_view(reinterpret_cast<const char*>(bytes.data()), N));
}

}  // namespace

std::int64_t UnixNanoseconds(TimePoint time) {
  const auto wall_now = std::chrono::system_clock::now();
  const auto wall = wall_now - std::chrono::duration_cast<std::chrono::system_clock::duration>(
                                   Clock::System().Now() - time);
  return std::chrono::duration_cast<std::chrono::nanoseconds>(wall.time_since_epoch()).count();
}

std::string SpanIdHex(const TraceContext& context) {
  return Hex(context.span_id);
}

OpenSpan::OpenSpan(SpanSink* sink, std::string_view name, const std::string& traceparent)
    : sink_(sink), traceparent_(traceparent) {
  if (sink_ == nullptr) {
    return;
  }
  const std::optional<TraceContext> parent = TraceContext::Parse(traceparent);
  span_.context = parent.has_value() ? parent->NewChild() : TraceContext::NewTrace();
  if (parent.has_value()) {
    span_.parent = parent->span_id;
  }
  span_.name = name;
  span_.start = Clock::System().Now();
  traceparent_ = span_.context.ToString();
}

void OpenSpan::Add(std::string_view name, Span::Value value) {
  if (sink_ != nullptr) {
    span_.attributes.emplace_back(name, std::move(value));
  }
}

void OpenSpan::End(const absl::Status& status) {
  EndAt(Clock::System().Now(), status);
}

void OpenSpan::EndAt(TimePoint end, const absl::Status& status) {
  if (SpanSink* sink = std::exchange(sink_, nullptr); sink != nullptr) {
    span_.end = end;
    span_.status = status;
    sink->Record(std::move(span_));
  }
}

std::string ToJsonLine(const Span& span, std::string_view service) {
  nlohmann::ordered_json line;
  line["kind"] = "span";
  line["trace_id"] = Hex(span.context.trace_id);
  line["span_id"] = Hex(span.context.span_id);
  if (span.parent.has_value()) {
    line["parent_span_id"] = Hex(*span.parent);
  }
  line["service"] = service;
  line["name"] = span.name;
  const std::int64_t start = UnixNanoseconds(span.start);
  line["start_time_unix_nano"] = start;
  // From the same base: two looks at two clocks would shift one end against the other.
  line["end_time_unix_nano"] = start + (span.end - span.start).count();
  line["status"] = absl::StatusCodeToString(span.status.code());
  if (!span.status.ok()) {
    line["message"] = std::string(span.status.message());
  }
  nlohmann::ordered_json& attributes = line["attributes"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : span.attributes) {
    std::visit([&, key = std::string(name)](const auto& one) { attributes[key] = one; }, value);
  }
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

absl::StatusOr<UniqueFd> OpenTraceFile(const std::string& path) {
  const auto failed = [&path](int error) {
    return absl::ErrnoToStatus(error, absl::StrCat("trace file ", path));
  };
  // Without O_NONBLOCK a named pipe without a reader would wait here for good.
  UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644));
  if (!file.ok()) {
    return failed(errno);
  }
  struct stat what {};
  if (fstat(file.get(), &what) != 0) {
    return failed(errno);
  }
  if (!S_ISREG(what.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("trace file ", path, ": is no regular file"));
  }
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("trace file ", path, ": another process writes its trace there"));
  }
  if (ftruncate(file.get(), 0) != 0) {
    return failed(errno);
  }
  return file;
}

absl::StatusOr<std::unique_ptr<SpanFile>> SpanFile::Create(const std::string& path,
                                                           Options options) {
  absl::StatusOr<UniqueFd> file = OpenTraceFile(path);
  if (!file.ok()) {
    return file.status();
  }
  LogEvent(LogLevel::kInfo, "trace.started", {{"path", path}, {"most_bytes", options.most_bytes}});
  return std::unique_ptr<SpanFile>(new SpanFile(path, *std::move(file), std::move(options)));
}

SpanFile::SpanFile(std::string path, UniqueFd file, Options options)
    : path_(std::move(path)),
      options_(std::move(options)),
      mailbox_(options_.most_waiting),
      file_(std::move(file)) {
  thread_ = std::jthread([this] { Run(); });
}

SpanFile::~SpanFile() {
  mailbox_.Close();
}

void SpanFile::Record(Span span) {
  if (!mailbox_.Push(std::move(span)).ok()) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
  }
}

void SpanFile::Run() {
  bool last = false;
  bool open = true;
  while (!last) {
    last = mailbox_.closed();  // asked first: what was pushed before the end is taken below
    std::string text;
    for (const Span& span : mailbox_.PopAll(last ? absl::ZeroDuration() : absl::Seconds(1))) {
      absl::StrAppend(&text, ToJsonLine(span, options_.service), "\n");
    }
    if (!text.empty() && open) {
      open = Write(text);
    }
  }
  LogEvent(LogLevel::kInfo, "trace.ended",
           {{"path", path_}, {"bytes", written_bytes_}, {"dropped_spans", dropped_.load()}});
}

bool SpanFile::Write(std::string_view text) {
  if (written_bytes_ + text.size() > options_.most_bytes) {
    LogEvent(LogLevel::kWarn, "trace.full", {{"path", path_}, {"most_bytes", options_.most_bytes}});
    return false;
  }
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = write(file_.get(), text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      LogEvent(LogLevel::kWarn, "trace.failed",
               {{"path", path_}, {"status", absl::ErrnoToStatus(errno, "write")}});
      // Without the part of a line that is there.
      (void)!ftruncate(file_.get(), static_cast<off_t>(written_bytes_));
      return false;
    }
    done += static_cast<std::size_t>(count);
  }
  written_bytes_ += text.size();
  return true;
}

}  // namespace baton
