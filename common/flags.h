#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace baton {

// The command line of one program: flags, their environment twins, a config file, and the switches
// every program has
// (--help, --version, --print-config, --check-config, --config FILE).
//
// A flag `--kv-pool-size` is also the variable BATON_KV_POOL_SIZE and the key `kv-pool-size` in the
// TOML file. Precedence: flag, environment, file, default. Malformed, out of range or unknown:
// Parse reports all problems of all sources at once. Used in main.cc only; libraries take structs.
//
// The targets are borrowed and must outlive Parse; their values when added are the defaults. Not
// thread-safe.
class Flags {
 public:
  // `summary` is the first paragraph of --help.
  Flags(std::string program, std::string summary);
  ~Flags();
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  // `name` has no dashes in front. `help` says meaning, unit and range.
  void Text(std::string name, std::string* target, std::string help);
  void TextList(std::string name,
                std::vector<std::string>* target,
                std::string help);  // repeatable
  void Choice(std::string name,
              std::string* target,
              std::vector<std::string> choices,
              std::string help);
  void Integer(std::string name,
               std::int64_t* target,
               std::int64_t low,
               std::int64_t high,
               std::string help);
  void OptionalInteger(std::string name,
                       std::optional<std::int64_t>* target,
                       std::int64_t low,
                       std::int64_t high,
                       std::string help);
  void OptionalUnsigned(std::string name, std::optional<std::uint64_t>* target, std::string help);
  void Number(std::string name, double* target, double low, double high, std::string help);
  void OptionalNumber(
      std::string name, std::optional<double>* target, double low, double high, std::string help);
  void Bytes(std::string name, std::size_t* target, std::string help);  // "2GiB", "512MiB", "4096"
  void Switch(std::string name,
              bool* target,
              std::string help);  // --name, or BATON_NAME=true|false
  // One optional argument without a name, e.g. PROMPT.
  void Positional(std::string name, std::optional<std::string>* target, std::string help);
  // A further check over several flags; returns the problem, or OK. Runs after all values are set.
  void Check(std::function<absl::Status()> check);

  // A subcommand with flags of its own; those of the parent are accepted after it too. The
  // reference lives as long as this.
  Flags& Subcommand(std::string name, std::string summary);
  // Name of the subcommand that was given; empty when none.
  std::string chosen_subcommand() const;

  // nullopt: go on. Else the program is to exit with this code: 0 after --help, --version,
  // --print-config or a clean
  // --check-config (printed on standard output); 2 after problems (printed on standard error).
  std::optional<int> Parse(int argc, const char* const* argv);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// "host:port" with a non-empty host and a port of 0 to 65535; IPv6 hosts in brackets.
// INVALID_ARGUMENT otherwise.
absl::Status CheckHostPort(std::string_view text);

// Of the host of a host:port: an address that means every interface, which nobody can be told to
// reach, in any spelling.
bool IsWildcardHost(std::string_view host);
// The same: an address that only this machine reaches; of names, localhost alone.
bool IsLoopbackHost(std::string_view host);

// A count of bytes with an optional unit KiB, MiB, GiB, TiB (or B); nullopt when malformed or too
// large.
std::optional<std::size_t> ParseBytes(std::string_view text);

extern const char kBatonVersion[];

}  // namespace baton
