#include "common/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "common/utf8.h"

namespace baton {
namespace {

struct LogState {
  std::shared_ptr<spdlog::logger> logger;  // spdlog's own registry shares it
  LogFormat format = LogFormat::kText;
  std::string component = "baton";
};

LogState& State() {
  static LogState state{.logger = spdlog::stderr_logger_mt("baton")};
  return state;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// JSON-quoted when the bare value would be read as something else.
std::string QuoteIfNeeded(const std::string& value) {
  bool plain = !value.empty();
  for (const char c : value) {
    plain = plain && c > ' ' && c < 0x7f && c != '"' && c != '\\' && c != '=';
  }
  return plain ? value : nlohmann::json(ReplaceInvalidUtf8(value)).dump(-1, ' ', true);
}

}  // namespace

void SetUpLog(const LogOptions& options) {
  LogState& state = State();
  state.format = options.format;
  state.component = options.component;
  state.logger->set_level(ToSpdlog(options.level));
  state.logger->flush_on(spdlog::level::debug);
  // %H:%M:%S.%e in local time carries the offset so that lines of several machines can be put in
  // order.
  state.logger->set_pattern(options.format == LogFormat::kText
                                ? "%Y-%m-%dT%H:%M:%S.%f%z %l %v"
                                : "{\"time\":\"%Y-%m-%dT%H:%M:%S.%f%z\",%v}");
}

bool LogEnabled(LogLevel level) {
  return State().logger->should_log(ToSpdlog(level));
}

void LogEvent(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  LogState& state = State();
  if (!state.logger->should_log(ToSpdlog(level))) {
    return;
  }
  std::string line;
  if (state.format == LogFormat::kText) {
    absl::StrAppend(&line, state.component, " ", std::string(event));
    for (const LogField& field : fields) {
      absl::StrAppend(&line, " ", std::string(field.key), "=", QuoteIfNeeded(field.value));
    }
  } else {
    const auto quoted = [](std::string_view text) {
      return nlohmann::json(ReplaceInvalidUtf8(text)).dump(-1, ' ', true);
    };
    const std::string_view level_name = spdlog::level::to_string_view(ToSpdlog(level)).data();
    absl::StrAppend(&line, "\"level\":", quoted(level_name),
                    ",\"component\":", quoted(state.component), ",\"event\":", quoted(event));
    for (const LogField& field : fields) {
      absl::StrAppend(&line, ",", quoted(field.key), ":", quoted(field.value));
    }
  }
  state.logger->log(ToSpdlog(level), "{}", line);
}

absl::Status ParseLogLevel(std::string_view text, LogLevel* level) {
  if (text == "debug") {
    *level = LogLevel::kDebug;
  } else if (text == "info") {
    *level = LogLevel::kInfo;
  } else if (text == "warn") {
    *level = LogLevel::kWarn;
  } else if (text == "error") {
    *level = LogLevel::kError;
  } else {
    return absl::InvalidArgumentError("must be debug, info, warn or error");
  }
  return absl::OkStatus();
}

}  // namespace baton
