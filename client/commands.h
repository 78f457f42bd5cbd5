#pragma once

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "baton/v1/completions.pb.h"
#include "client/completions_client.h"

namespace baton {

// Where a prompt comes from: exactly one of the two is given; "-" is standard input.
struct PromptSource {
  std::optional<std::string> argument;
  std::string file;
};

// What `complete` and `chat` share. Absent: the server's default.
struct GenerationFlags {
  std::optional<std::int64_t> max_tokens;
  std::optional<std::int64_t> min_tokens;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<std::int64_t> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<double> frequency_penalty;
  std::optional<double> presence_penalty;
  std::optional<std::uint64_t> seed;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  std::string path = "auto";
  std::string cache_salt;
  std::string request_id;
  std::string session;
  std::string zone;
  std::int64_t priority = 0;
  std::string tenant;  // empty: not said
  std::int64_t timeout_seconds = 600;
};

struct CompleteFlags {
  PromptSource prompt;
  GenerationFlags generation;
  std::optional<std::int64_t> n;
  std::optional<std::int64_t> logprobs;
  bool echo = false;
  bool special = false;
  bool stream = false;
  bool json = false;
};

struct ChatFlags {
  GenerationFlags generation;
  std::string system;
};

struct TokenizeFlags {
  PromptSource text;
  bool special = false;
};

// The streams of a command. `dim` when `out` is a terminal; `prompting` when `in` is one.
struct Console {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  bool dim = false;
  bool prompting = false;
};

// The bytes of the prompt as they are: no newline and no byte-order mark is taken off.
absl::StatusOr<std::string> ReadPrompt(const PromptSource& source, std::istream& in);

v1::CompleteRequest MakeRequest(const GenerationFlags& flags);

// Each runs one command against `client`; an error is for the caller to show.
absl::Status RunComplete(CompletionsClient& client, const CompleteFlags& flags, Console& console);
// Reads lines until the end of the input. A turn that fails is shown on `err` and forgotten, and
// the conversation goes on; the status of the last such turn is returned at the end.
absl::Status RunChat(CompletionsClient& client, const ChatFlags& flags, Console& console);
absl::Status RunTokenize(CompletionsClient& client, const TokenizeFlags& flags, Console& console);
absl::Status RunModels(CompletionsClient& client, bool json, Console& console);
absl::Status RunStatus(CompletionsClient& client, bool json, Console& console);

// "INVALID_ARGUMENT: max_tokens: 0 is not from 1 to 8192", as errors are shown; with the time after
// which another try makes sense, when the server says so.
std::string DescribeError(const absl::Status& status);

}  // namespace baton
