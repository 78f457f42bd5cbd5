// baton: the command-line client.

#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "common/flags.h"
#include "common/tls_hint.h"

namespace {

constexpr std::int64_t kMostTokens = 0xFFFFFFFF;
constexpr std::int64_t kMostChoices = 16;
constexpr std::int64_t kMostPriority = 0x7FFFFFFF;
constexpr std::int64_t kMostLogprobs = 20;

struct ClientFlags {
  std::string server = "127.0.0.1:8000";
  baton::TlsFiles tls;
  baton::CompleteFlags complete;
  baton::ChatFlags chat;
  baton::TokenizeFlags tokenize;
  bool models_json = false;
  bool status_json = false;
};

void AddGenerationFlags(baton::Flags& flags, baton::GenerationFlags& settings) {
  flags.OptionalInteger("max-tokens", &settings.max_tokens, 0, kMostTokens,
                        "most new tokens; absent: as many as the context has room for");
  flags.OptionalInteger("min-tokens", &settings.min_tokens, 0, kMostTokens,
                        "new tokens before an end is taken as one");
  flags.OptionalNumber("temperature", &settings.temperature, 0, 2, "0 is greedy; absent: 1");
  flags.OptionalNumber("top-p", &settings.top_p, 0, 1,
                       "least probability mass to sample from; absent: 1");
  flags.OptionalInteger("top-k", &settings.top_k, 0, kMostTokens,
                        "likeliest tokens to sample from; 0: all");
  flags.OptionalNumber("min-p", &settings.min_p, 0, 1,
                       "least probability relative to the likeliest token");
  flags.OptionalNumber("repetition-penalty", &settings.repetition_penalty, 0, 2, "absent: 1, none");
  flags.OptionalNumber("frequency-penalty", &settings.frequency_penalty, -2, 2, "absent: 0, none");
  flags.OptionalNumber("presence-penalty", &settings.presence_penalty, -2, 2, "absent: 0, none");
  flags.OptionalUnsigned("seed", &settings.seed, "of the sampling; absent: a fresh one each time");
  flags.TextList("stop", &settings.stop, "text that ends the completion and is not part of it");
  flags.Switch("ignore-eos", &settings.ignore_eos, "go on after the model's end of sequence");
  flags.Choice("path", &settings.path, {"auto", "colocated", "disaggregated"},
               "way of the request");
  flags.Text("cache-salt", &settings.cache_salt,
             "cached prompts are shared only under the same salt; at most 128 bytes");
  flags.Text("request-id", &settings.request_id,
             "name in logs and for Abort; empty: made by the server");
  flags.Text(
      "session", &settings.session,
      "key of a conversation: a router may send its requests to one worker; at most 128 bytes");
  flags.Text("zone", &settings.zone, "residency zone that must serve the request; empty: any");
  flags.Integer("priority", &settings.priority, -kMostPriority, kMostPriority,
                "lower ones leave a router's queue first");
  flags.Text("tenant", &settings.tenant,
             "whom the request is for, where certificates do not say it; empty: default");
  flags.Integer("timeout", &settings.timeout_seconds, 1, 3600,
                "seconds until the request is given up");
}

void AddPromptFlags(baton::Flags& flags, const char* name, baton::PromptSource& source) {
  flags.Positional(name, &source.argument, "the text, or - for standard input, byte for byte");
  flags.Text("prompt-file", &source.file, "file that holds the text, byte for byte");
}

void AddFlags(baton::Flags& flags, ClientFlags& settings) {
  flags.Text("server", &settings.server, "host:port of a router or decode worker");
  flags.Text("tls-cert", &settings.tls.certificate, "PEM certificate to show to the server");
  flags.Text("tls-key", &settings.tls.key, "PEM key of --tls-cert");
  flags.Text("tls-ca", &settings.tls.authority,
             "PEM authorities that the server must be signed by");

  baton::Flags& complete = flags.Subcommand("complete", "Complete a prompt.");
  AddPromptFlags(complete, "PROMPT", settings.complete.prompt);
  AddGenerationFlags(complete, settings.complete.generation);
  complete.OptionalInteger("n", &settings.complete.n, 1, kMostChoices,
                           "completions to make of the prompt, 1 to 16; absent: 1");
  complete.OptionalInteger("logprobs", &settings.complete.logprobs, 0, kMostLogprobs,
                           "show the log probability of each token and of so many alternatives");
  complete.Switch("echo", &settings.complete.echo, "begin each completion with the prompt");
  complete.Switch("special", &settings.complete.special,
                  "control tokens written in the prompt become ids");
  complete.Switch("stream", &settings.complete.stream,
                  "print the text as it comes; of several completions one after the other");
  complete.Switch("json", &settings.complete.json,
                  "print the response as one JSON object (never as it comes)");

  baton::Flags& chat =
      flags.Subcommand("chat", "Talk: a line is a message, the conversation is kept.");
  AddGenerationFlags(chat, settings.chat.generation);
  chat.Text("system", &settings.chat.system,
            "message that comes before all others; empty: the model's own");

  baton::Flags& tokenize =
      flags.Subcommand("tokenize", "Print the token ids of a text as a JSON array.");
  AddPromptFlags(tokenize, "TEXT", settings.tokenize.text);
  tokenize.Switch("special", &settings.tokenize.special,
                  "control tokens written in the text become ids");

  flags.Subcommand("models", "Show the served models.")
      .Switch("json", &settings.models_json, "print one JSON object");
  flags.Subcommand("status", "Show the server, its fleet and its requests.")
      .Switch("json", &settings.status_json, "print one JSON object");
}

absl::Status CheckSource(const char* name, const baton::PromptSource& source) {
  if (source.argument.has_value() == !source.file.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("one of ", name, ", - for standard input, and --prompt-file is needed"));
  }
  return absl::OkStatus();
}

// What a command needs to run; --print-config and --check-config do without.
absl::Status CheckCommand(const std::string& command, const ClientFlags& settings) {
  if (command.empty()) {
    return absl::InvalidArgumentError(
        "one of complete, chat, tokenize, models and status is needed");
  }
  if (command == "complete") {
    return CheckSource("PROMPT", settings.complete.prompt);
  }
  return command == "tokenize" ? CheckSource("TEXT", settings.tokenize.text) : absl::OkStatus();
}

absl::Status CheckServer(const ClientFlags& settings) {
  if (const absl::Status status = baton::CheckHostPort(settings.server); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--server: ", std::string(status.message())));
  }
  return baton::CheckTlsFiles(settings.tls, /*server=*/false);
}

absl::Status Run(const std::string& command, const ClientFlags& settings) {
  baton::Console console{.in = std::cin,
                         .out = std::cout,
                         .err = std::cerr,
                         .dim = isatty(STDOUT_FILENO) != 0,
                         .prompting = isatty(STDIN_FILENO) != 0};
  auto client = baton::CompletionsClient::Create(settings.server, settings.tls);
  if (!client.ok()) {
    return client.status();
  }
  if (command == "complete") {
    return baton::RunComplete(**client, settings.complete, console);
  }
  if (command == "chat") {
    return baton::RunChat(**client, settings.chat, console);
  }
  if (command == "tokenize") {
    return baton::RunTokenize(**client, settings.tokenize, console);
  }
  if (command == "models") {
    return baton::RunModels(**client, settings.models_json, console);
  }
  return baton::RunStatus(**client, settings.status_json, console);
}

}  // namespace

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  ClientFlags settings;
  baton::Flags flags("baton", "Command-line client of a Baton server.");
  AddFlags(flags, settings);
  flags.Check([&settings] { return CheckServer(settings); });
  if (const std::optional<int> code = flags.Parse(argc, argv)) {
    return *code;
  }
  const std::string command = flags.chosen_subcommand();
  if (const absl::Status usage = CheckCommand(command, settings); !usage.ok()) {
    std::fprintf(stderr, "baton: %s\nbaton: see --help\n", std::string(usage.message()).c_str());
    return 2;
  }
  const absl::Status status = baton::WithTlsHint(Run(command, settings), settings.tls.use());
  if (!status.ok()) {
    std::fprintf(stderr, "baton: %s: %s: %s\n", command.c_str(), settings.server.c_str(),
                 baton::DescribeError(status).c_str());
    return 1;
  }
  return 0;
}
