#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton {

enum class LogLevel { kDebug, kInfo, kWarn, kError };
enum class LogFormat { kText, kJson };

struct LogOptions {
  std::string component;  // "router", "prefill", ...: stands in every line
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
};

// One key=value pair of a line. Text values are escaped on output, so a client's bytes cannot forge
// a line.
struct LogField {
  template <typename T>
  LogField(std::string_view name, const T& content)
      : key(name) {  // NOLINT(google-explicit-constructor)
    if constexpr (std::is_same_v<T, absl::Status>) {
      value = content.ToString();
    } else if constexpr (std::is_same_v<T, bool>) {
      value = content ? "true" : "false";
    } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      value = std::string(std::string_view(content));
    } else {
      value = absl::StrCat(content);
    }
  }

  std::string_view key;
  std::string value;
};

// Sets up the one log of the process: a line an event on standard error. Call once in main before
// the first event; events before that go out in the default form.
void SetUpLog(const LogOptions& options);

bool LogEnabled(LogLevel level);

// Writes `<time> <level> <component> <event> key=value ...` or the same as one JSON object. Events
// are nouns and verbs: "handoff.landed". Thread-safe.
void LogEvent(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {});

// nullopt-like: INVALID_ARGUMENT with the known names.
absl::Status ParseLogLevel(std::string_view text, LogLevel* level);

}  // namespace baton
