#include "bench/trace_files.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/file.h"
#include "common/status_macros.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kLongest = std::int64_t{1} << 24;   // tokens
constexpr std::int64_t kLatestMs = std::int64_t{1} << 42;  // 139 years
constexpr std::string_view kAzureColumns = "TIMESTAMP,ContextTokens,GeneratedTokens";

// A place in a trace, for messages.
struct Line {
  const std::string& name;
  std::size_t number;  // from 1

  absl::Status Problem(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat(name, ":", number, ": ", what));
  }
};

absl::StatusOr<int> DivideLength(const Line& line,
                                 const char* member,
                                 std::int64_t length,
                                 int divisor) {
  if (length < 1 || length > kLongest) {
    return line.Problem(absl::StrCat(member, ": ", length, " is not in 1 to ", kLongest));
  }
  return static_cast<int>((length + divisor - 1) / divisor);
}

// Calls `read` with every line that is not empty, without its end, until one fails.
template <typename Read>
absl::Status ForEachLine(const std::string& name, std::string_view text, const Read& read) {
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    if (!line.empty() && line.back() == '\r') {
      line.remove_suffix(1);
    }
    if (!line.empty()) {
      RETURN_IF_ERROR(read(Line{.name = name, .number = number}, line));
    }
  }
  return absl::OkStatus();
}

// Appends `request`, whose `arrival` is a time of the trace's own clock until Finish.
absl::Status Append(const Line& line, TraceRequest request, Trace& trace) {
  if (!trace.requests.empty() && request.arrival < trace.requests.back().arrival) {
    return line.Problem("earlier than the line before");
  }
  trace.requests.push_back(std::move(request));
  return absl::OkStatus();
}

absl::StatusOr<Trace> Finish(const std::string& name, Trace trace) {
  if (trace.requests.empty()) {
    return absl::InvalidArgumentError(name + ": no requests");
  }
  const Duration first = trace.requests.front().arrival;
  for (TraceRequest& request : trace.requests) {
    request.arrival -= first;
  }
  return trace;
}

absl::StatusOr<std::int64_t> IntegerMember(const Line& line, const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_integer() ||
      (found->is_number_unsigned() && found->get<std::uint64_t>() > std::uint64_t{1} << 62)) {
    return line.Problem(absl::StrCat(name, ": no integer"));
  }
  return found->get<std::int64_t>();
}

absl::Status ReadHashIds(const Line& line, const Json& object, TraceRequest& request) {
  const auto ids = object.find("hash_ids");
  if (ids == object.end() || !ids->is_array()) {
    return line.Problem("hash_ids: no array");
  }
  for (const Json& id : *ids) {
    if (!id.is_number_unsigned()) {
      return line.Problem("hash_ids: holds what is no integer of 0 or more");
    }
    request.hash_ids.push_back(id.get<std::uint64_t>());
  }
  return absl::OkStatus();
}

absl::StatusOr<TraceRequest> ReadMooncakeLine(const Line& line,
                                              std::string_view text,
                                              int length_divisor) {
  // Without exceptions: a line that is no JSON is "discarded".
  const Json object = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return line.Problem("not a JSON object");
  }
  ASSIGN_OR_RETURN(const std::int64_t timestamp, IntegerMember(line, object, "timestamp"));
  if (timestamp < 0 || timestamp > kLatestMs) {
    return line.Problem(absl::StrCat("timestamp: ", timestamp, " is not in 0 to ", kLatestMs));
  }
  ASSIGN_OR_RETURN(const std::int64_t input, IntegerMember(line, object, "input_length"));
  ASSIGN_OR_RETURN(const std::int64_t output, IntegerMember(line, object, "output_length"));
  TraceRequest request{.arrival = std::chrono::milliseconds(timestamp)};
  ASSIGN_OR_RETURN(request.prompt_tokens,
                   DivideLength(line, "input_length", input, length_divisor));
  ASSIGN_OR_RETURN(request.output_tokens,
                   DivideLength(line, "output_length", output, length_divisor));
  RETURN_IF_ERROR(ReadHashIds(line, object, request));
  const std::int64_t pieces = (input + kMooncakeHashedTokens - 1) / kMooncakeHashedTokens;
  if (static_cast<std::int64_t>(request.hash_ids.size()) != pieces) {
    return line.Problem(absl::StrCat("hash_ids: ", request.hash_ids.size(), " of them, not ",
                                     pieces, " for ", input, " tokens"));
  }
  return request;
}

std::optional<int> Digits(std::string_view text) {
  int value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') {
      return std::nullopt;
    }
    value = value * 10 + (c - '0');  // REQUIRES: at most 9 digits
  }
  return value;
}

// "2023-11-16 18:15:46.6805900" as time since 1970, leap seconds left out.
std::optional<Duration> ParseTimestamp(std::string_view text) {
  constexpr std::string_view kZone = "+00:00";
  constexpr std::string_view kShape = "dddd-dd-dd dd:dd:dd";  // d: a digit
  if (text.size() > kZone.size() && text.substr(text.size() - kZone.size()) == kZone) {
    text.remove_suffix(kZone.size());
  }
  if (text.size() < kShape.size()) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < kShape.size(); ++i) {
    if (kShape[i] != 'd' ? text[i] != kShape[i] : (text[i] < '0' || text[i] > '9')) {
      return std::nullopt;
    }
  }
  const auto part = [&text](std::size_t at, std::size_t digits) {
    return *Digits(text.substr(at, digits));
  };
  const std::chrono::year_month_day day{std::chrono::year(part(0, 4)),
                                        std::chrono::month(static_cast<unsigned>(part(5, 2))),
                                        std::chrono::day(static_cast<unsigned>(part(8, 2)))};
  const int hour = part(11, 2);
  const int minute = part(14, 2);
  const int second = part(17, 2);
  if (!day.ok() || hour > 23 || minute > 59 || second > 59) {
    return std::nullopt;
  }
  std::string_view rest = text.substr(kShape.size());
  int nanoseconds = 0;
  if (!rest.empty()) {
    const std::optional<int> digits =
        rest.size() <= 10 ? Digits(rest.substr(1)) : std::optional<int>();
    if (rest[0] != '.' || rest.size() < 2 || !digits.has_value()) {
      return std::nullopt;
    }
    nanoseconds = *digits;
    for (std::size_t i = rest.size(); i < 10; ++i) {
      nanoseconds *= 10;
    }
  }
  return std::chrono::sys_days(day).time_since_epoch() + std::chrono::hours(hour) +
         std::chrono::minutes(minute) + std::chrono::seconds(second) +
         std::chrono::nanoseconds(nanoseconds);
}

absl::StatusOr<int> LengthColumn(const Line& line,
                                 const char* column,
                                 std::string_view text,
                                 int length_divisor) {
  std::int64_t length = 0;
  if (!absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &length)) {
    return line.Problem(absl::StrCat(column, ": no integer"));
  }
  return DivideLength(line, column, length, length_divisor);
}

absl::StatusOr<TraceRequest> ReadAzureLine(const Line& line,
                                           std::string_view text,
                                           int length_divisor) {
  const std::size_t first = text.find(',');
  const std::size_t second = first == std::string_view::npos ? first : text.find(',', first + 1);
  if (second == std::string_view::npos || text.find(',', second + 1) != std::string_view::npos) {
    return line.Problem("not three columns");
  }
  const std::optional<Duration> time = ParseTimestamp(text.substr(0, first));
  if (!time.has_value()) {
    return line.Problem("TIMESTAMP: not like 2023-11-16 18:15:46.6805900");
  }
  TraceRequest request{.arrival = *time};
  ASSIGN_OR_RETURN(request.prompt_tokens,
                   LengthColumn(line, "ContextTokens", text.substr(first + 1, second - first - 1),
                                length_divisor));
  ASSIGN_OR_RETURN(request.output_tokens,
                   LengthColumn(line, "GeneratedTokens", text.substr(second + 1), length_divisor));
  return request;
}

void AppendTokens(std::uint64_t seed,
                  int count,
                  const PromptVocabulary& vocabulary,
                  std::vector<std::uint32_t>& tokens) {
  std::mt19937_64 generator(seed);
  for (int i = 0; i < count; ++i) {
    // The remainder favours no token by more than tokens / 2^64.
    tokens.push_back(vocabulary.first_token +
                     static_cast<std::uint32_t>(generator() % vocabulary.tokens));
  }
}

}  // namespace

absl::StatusOr<Trace> ParseMooncakeTrace(const std::string& name,
                                         std::string_view text,
                                         int length_divisor) {
  BATON_CHECK(length_divisor >= 1 && kMooncakeHashedTokens % length_divisor == 0);
  Trace trace{.hashed_tokens = kMooncakeHashedTokens / length_divisor};
  RETURN_IF_ERROR(
      ForEachLine(name, text, [&](const Line& line, std::string_view content) -> absl::Status {
        ASSIGN_OR_RETURN(TraceRequest request, ReadMooncakeLine(line, content, length_divisor));
        return Append(line, std::move(request), trace);
      }));
  return Finish(name, std::move(trace));
}

absl::StatusOr<Trace> ParseAzureTrace(const std::string& name,
                                      std::string_view text,
                                      int length_divisor) {
  BATON_CHECK(length_divisor >= 1);
  Trace trace;
  RETURN_IF_ERROR(
      ForEachLine(name, text, [&](const Line& line, std::string_view content) -> absl::Status {
        if (line.number == 1) {
          return content == kAzureColumns
                     ? absl::OkStatus()
                     : line.Problem(absl::StrCat("not ", std::string(kAzureColumns)));
        }
        ASSIGN_OR_RETURN(TraceRequest request, ReadAzureLine(line, content, length_divisor));
        return Append(line, std::move(request), trace);
      }));
  return Finish(name, std::move(trace));
}

absl::StatusOr<Trace> ReadTraceFile(const std::string& path, int length_divisor) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return absl::EndsWith(path, ".csv") ? ParseAzureTrace(path, file.bytes(), length_divisor)
                                      : ParseMooncakeTrace(path, file.bytes(), length_divisor);
}

std::vector<std::uint32_t> MakePromptTokens(const TraceRequest& request,
                                            int hashed_tokens,
                                            const PromptVocabulary& vocabulary,
                                            bool pad_to_whole_blocks,
                                            std::uint64_t own_seed) {
  BATON_CHECK(vocabulary.tokens >= 1);
  std::vector<std::uint32_t> tokens;
  if (request.hash_ids.empty()) {
    AppendTokens(own_seed, request.prompt_tokens, vocabulary, tokens);
    return tokens;
  }
  for (const std::uint64_t id : request.hash_ids) {
    AppendTokens(id, hashed_tokens, vocabulary, tokens);
  }
  if (!pad_to_whole_blocks) {
    tokens.resize(static_cast<std::size_t>(request.prompt_tokens));
  }
  return tokens;
}

}  // namespace baton
