#include "common/flags.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/checked_math.h"

namespace baton {

const char kBatonVersion[] = "0.1.0";

namespace {

std::string EnvironmentName(const std::string& name) {
  std::string upper = absl::AsciiStrToUpper(absl::StrCat("BATON_", name));
  for (char& c : upper) {
    c = c == '-' ? '_' : c;
  }
  return upper;
}

// One flag: CLI11 only collects its words; conversion is ours, so that all problems are reported
// together.
struct Entry {
  std::string name;
  bool is_switch = false;
  bool positional = false;
  std::vector<std::string> words;
  bool switch_value = false;
  CLI::Option* option = nullptr;
  std::function<absl::Status(const std::vector<std::string>&)> convert;
  std::function<std::string()> print;
  std::string origin = "default";
};

std::string QuoteToml(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted.push_back('\\');
    }
    quoted.push_back(c);
  }
  return quoted + "\"";
}

template <typename T>
absl::Status ConvertInteger(const std::string& word, T low, T high, T& out) {
  T value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || value < low || value > high) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", word, "\" is not an integer from ", low, " to ", high));
  }
  out = value;
  return absl::OkStatus();
}

absl::Status ConvertNumber(const std::string& word, double low, double high, double& out) {
  double value = 0;
  // Written so that NaN fails.
  if (!absl::SimpleAtod(word, &value) || !(value >= low && value <= high)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", word, "\" is not a number from ", low, " to ", high));
  }
  out = value;
  return absl::OkStatus();
}

absl::Status ConvertBool(const std::string& word, bool& out) {
  if (word != "true" && word != "false") {
    return absl::InvalidArgumentError(absl::StrCat("\"", word, "\" is neither true nor false"));
  }
  out = word == "true";
  return absl::OkStatus();
}

}  // namespace

struct Flags::State {
  std::string program;
  std::unique_ptr<CLI::App> owned_app;  // null in a subcommand: the parent's CLI11 object owns it
  CLI::App* app = nullptr;
  std::vector<std::unique_ptr<Entry>> entries;  // CLI11 keeps pointers into them
  std::vector<std::function<absl::Status()>> checks;
  std::map<std::string, std::unique_ptr<Flags>> subcommands;
  bool version = false;
  bool print_config = false;
  bool check_config = false;

  Entry& Add(const std::string& name, const std::string& help);
  void AddStandard();
  void Collect(const std::vector<std::string>& command_line, std::vector<std::string>& problems);
  void Print(std::string& out) const;
};

Flags::Flags(std::string program, std::string summary) : state_(std::make_unique<State>()) {
  state_->program = program;
  state_->owned_app = std::make_unique<CLI::App>(std::move(summary), std::move(program));
  state_->app = state_->owned_app.get();
  state_->AddStandard();
}

Flags::~Flags() = default;

void Flags::State::AddStandard() {
  app->set_help_flag("--help,-h", "print this text and exit");
  app->add_flag("--version", version, "print the version and exit");
  app->add_flag(
      "--print-config", print_config,
      "print every effective value and where it came from (a valid --config file), and exit");
  app->add_flag("--check-config", check_config, "check flags, environment and file, and exit");
  app->set_config("--config", "", "TOML file with flag names as keys", false);
  app->allow_config_extras(CLI::config_extras_mode::error);
  app->get_formatter()->column_width(44);
}

Entry& Flags::State::Add(const std::string& name, const std::string& help) {
  entries.push_back(std::make_unique<Entry>());
  Entry& entry = *entries.back();
  entry.name = name;
  entry.option = app->add_option(absl::StrCat("--", name), entry.words, help);
  entry.option->type_name("")->take_all()->allow_extra_args(false);
  return entry;
}

namespace {

// The last word wins, as everywhere on command lines.
std::function<absl::Status(const std::vector<std::string>&)> Last(
    std::function<absl::Status(const std::string&)> convert) {
  return [convert = std::move(convert)](const std::vector<std::string>& words) {
    return convert(words.back());
  };
}

}  // namespace

void Flags::Text(std::string name, std::string* target, std::string help) {
  Entry& entry = state_->Add(name, absl::StrCat(help, " [", *target, "]"));
  entry.convert = Last([target](const std::string& word) {
    *target = word;
    return absl::OkStatus();
  });
  entry.print = [target] { return QuoteToml(*target); };
}

void Flags::TextList(std::string name, std::vector<std::string>* target, std::string help) {
  Entry& entry = state_->Add(name, absl::StrCat(help, "; repeatable"));
  entry.convert = [target](const std::vector<std::string>& words) {
    *target = words;
    return absl::OkStatus();
  };
  entry.print = [target] {
    std::vector<std::string> quoted;
    for (const std::string& text : *target) {
      quoted.push_back(QuoteToml(text));
    }
    return absl::StrCat("[", absl::StrJoin(quoted, ", "), "]");
  };
}

void Flags::Choice(std::string name,
                   std::string* target,
                   std::vector<std::string> choices,
                   std::string help) {
  const std::string list = absl::StrJoin(choices, "|");
  Entry& entry = state_->Add(name, absl::StrCat(list, ": ", help, " [", *target, "]"));
  entry.convert = Last([target, list, choices = std::move(choices)](const std::string& word) {
    if (std::find(choices.begin(), choices.end(), word) == choices.end()) {
      return absl::InvalidArgumentError(absl::StrCat("\"", word, "\" is not one of ", list));
    }
    *target = word;
    return absl::OkStatus();
  });
  entry.print = [target] { return QuoteToml(*target); };
}

void Flags::Integer(
    std::string name, std::int64_t* target, std::int64_t low, std::int64_t high, std::string help) {
  Entry& entry = state_->Add(name, absl::StrCat(help, " [", *target, "]"));
  entry.convert =
      Last([=](const std::string& word) { return ConvertInteger(word, low, high, *target); });
  entry.print = [target] { return absl::StrCat(*target); };
}

void Flags::OptionalInteger(std::string name,
                            std::optional<std::int64_t>* target,
                            std::int64_t low,
                            std::int64_t high,
                            std::string help) {
  Entry& entry = state_->Add(name, help);
  entry.convert = Last(
      [=](const std::string& word) { return ConvertInteger(word, low, high, target->emplace(0)); });
  entry.print = [target] { return target->has_value() ? absl::StrCat(**target) : ""; };
}

void Flags::OptionalUnsigned(std::string name,
                             std::optional<std::uint64_t>* target,
                             std::string help) {
  Entry& entry = state_->Add(name, help);
  entry.convert = Last([=](const std::string& word) {
    return ConvertInteger(word, std::uint64_t{0}, ~std::uint64_t{0}, target->emplace(0));
  });
  entry.print = [target] { return target->has_value() ? absl::StrCat(**target) : ""; };
}

void Flags::Number(std::string name, double* target, double low, double high, std::string help) {
  Entry& entry = state_->Add(name, absl::StrCat(help, " [", *target, "]"));
  entry.convert =
      Last([=](const std::string& word) { return ConvertNumber(word, low, high, *target); });
  entry.print = [target] { return absl::StrCat(*target); };
}

void Flags::OptionalNumber(
    std::string name, std::optional<double>* target, double low, double high, std::string help) {
  Entry& entry = state_->Add(name, help);
  entry.convert = Last([=](const std::string& word) {
    double value = 0;
    const absl::Status status = ConvertNumber(word, low, high, value);
    if (status.ok()) {
      *target = value;
    }
    return status;
  });
  entry.print = [target] { return target->has_value() ? absl::StrCat(**target) : ""; };
}

void Flags::Bytes(std::string name, std::size_t* target, std::string help) {
  Entry& entry = state_->Add(
      name, absl::StrCat(help, "; bytes, or with KiB, MiB, GiB [", *target >> 20, "MiB]"));
  entry.convert = Last([target](const std::string& word) {
    const std::optional<std::size_t> bytes = ParseBytes(word);
    if (!bytes.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", word, "\" is not a size such as 4096, 512MiB or 2GiB"));
    }
    *target = *bytes;
    return absl::OkStatus();
  });
  entry.print = [target] { return QuoteToml(absl::StrCat(*target, "B")); };
}

void Flags::Switch(std::string name, bool* target, std::string help) {
  state_->entries.push_back(std::make_unique<Entry>());
  Entry& entry = *state_->entries.back();
  entry.name = name;
  entry.is_switch = true;
  entry.option = state_->app->add_flag(absl::StrCat("--", name), entry.switch_value, help);
  entry.convert = Last([target](const std::string& word) { return ConvertBool(word, *target); });
  entry.print = [target] { return *target ? "true" : "false"; };
}

void Flags::Positional(std::string name, std::optional<std::string>* target, std::string help) {
  state_->entries.push_back(std::make_unique<Entry>());
  Entry& entry = *state_->entries.back();
  entry.name = name;
  entry.positional = true;
  entry.option = state_->app->add_option(name, entry.words, help);
  entry.option->type_name("")->expected(1);
  entry.convert = Last([target](const std::string& word) {
    *target = word;
    return absl::OkStatus();
  });
}

void Flags::Check(std::function<absl::Status()> check) {
  state_->checks.push_back(std::move(check));
}

Flags& Flags::Subcommand(std::string name, std::string summary) {
  auto child = std::unique_ptr<Flags>(new Flags(name, summary));
  child->state_->app = state_->app->add_subcommand(name, summary);
  child->state_->owned_app.reset();
  child->state_->app->set_help_flag("--help,-h", "print this text and exit");
  child->state_->app->get_formatter()->column_width(44);
  child->state_->app->fallthrough();
  state_->app->require_subcommand(0, 1);
  return *(state_->subcommands[name] = std::move(child));
}

std::string Flags::chosen_subcommand() const {
  const auto chosen = state_->app->get_subcommands();
  return chosen.empty() ? "" : chosen.front()->get_name();
}

void Flags::State::Collect(const std::vector<std::string>& command_line,
                           std::vector<std::string>& problems) {
  for (const auto& entry : entries) {
    const std::string flag = absl::StrCat("--", entry->name);
    const bool typed = std::any_of(
        command_line.begin(), command_line.end(),
        [&flag](const std::string& word) { return word == flag || word.starts_with(flag + "="); });
    const std::string variable = EnvironmentName(entry->name);
    const char* environment = entry->positional ? nullptr : std::getenv(variable.c_str());
    std::vector<std::string> words = entry->words;
    if (entry->is_switch && entry->option->count() > 0) {
      words = {entry->switch_value ? "true" : "false"};
    }
    std::string where = entry->positional ? entry->name : flag;
    if (typed || entry->positional) {
      entry->origin = "command line";
    } else if (environment != nullptr) {
      entry->origin = absl::StrCat("environment ", variable);
      where = variable;
      words = {environment};
    } else if (entry->option->count() > 0) {
      entry->origin = "config file";
      where = absl::StrCat(entry->name, " in the config file");
    }
    if (words.empty()) {
      continue;
    }
    if (const absl::Status status = entry->convert(words); !status.ok()) {
      problems.push_back(absl::StrCat(where, ": ", std::string(status.message())));
    }
  }
}

void Flags::State::Print(std::string& out) const {
  for (const auto& entry : entries) {
    if (entry->positional) {
      continue;
    }
    const std::string value = entry->print();
    absl::StrAppend(&out, value.empty() ? "# " : "", entry->name, " = ", value, "  # ",
                    entry->origin, "\n");
  }
}

std::optional<int> Flags::Parse(int argc, const char* const* argv) {
  State& state = *state_;
  std::vector<std::string> problems;
  try {
    state.app->parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    state.app->exit(help);
    return 0;
  } catch (const CLI::FileError& error) {
    problems.push_back(error.what());
  } catch (const CLI::ParseError& error) {
    problems.push_back(error.what());
  }
  if (state.version) {
    std::printf("%s %s\n", state.program.c_str(), kBatonVersion);
    return 0;
  }
  const std::vector<std::string> command_line(argv + 1, argv + argc);
  state.Collect(command_line, problems);
  const std::string subcommand = chosen_subcommand();
  if (!subcommand.empty()) {
    state.subcommands.at(subcommand)->state_->Collect(command_line, problems);
  }
  if (problems.empty()) {
    for (const auto& check : state.checks) {
      if (const absl::Status status = check(); !status.ok()) {
        problems.push_back(std::string(status.message()));
      }
    }
  }
  if (!problems.empty()) {
    for (const std::string& problem : problems) {
      std::fprintf(stderr, "%s: %s\n", state.program.c_str(), problem.c_str());
    }
    std::fprintf(stderr, "%s: see --help\n", state.program.c_str());
    return 2;
  }
  if (state.print_config) {
    std::string text;
    state.Print(text);
    if (!subcommand.empty()) {
      state.subcommands.at(subcommand)->state_->Print(text);
    }
    std::printf("%s", text.c_str());
    return 0;
  }
  if (state.check_config) {
    std::printf("%s: configuration is valid\n", state.program.c_str());
    return 0;
  }
  return std::nullopt;
}

absl::Status CheckHostPort(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  std::uint32_t port = 0;
  const bool has_host = colon != std::string_view::npos && colon > 0;
  const std::string_view host = has_host ? text.substr(0, colon) : std::string_view();
  const bool bare_ipv6 =
      host.find(':') != std::string_view::npos && !(host.front() == '[' && host.back() == ']');
  const std::string digits(has_host ? text.substr(colon + 1) : std::string_view());
  const bool all_digits =
      !digits.empty() && digits.find_first_not_of("0123456789") == std::string::npos;
  if (!has_host || bare_ipv6 || !all_digits || !absl::SimpleAtoi(digits, &port) || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", std::string(text), "\" is not host:port (IPv6 hosts in brackets)"));
  }
  return absl::OkStatus();
}

namespace {

// Of a number, not of a name; an IPv4 address in IPv6 clothes is an IPv4 address.
std::optional<in6_addr> ParseAddress(std::string_view host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const addrinfo hints{.ai_flags = AI_NUMERICHOST, .ai_family = AF_UNSPEC};
  addrinfo* raw = nullptr;
  if (getaddrinfo(std::string(host).c_str(), nullptr, &hints, &raw) != 0) {
    return std::nullopt;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> found(raw, &freeaddrinfo);
  if (found->ai_family == AF_INET6) {
    return reinterpret_cast<const sockaddr_in6*>(found->ai_addr)->sin6_addr;
  }
  in6_addr mapped = IN6ADDR_ANY_INIT;
  mapped.s6_addr[10] = mapped.s6_addr[11] = 0xff;
  const in_addr address = reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr;
  std::memcpy(&mapped.s6_addr[12], &address, sizeof(address));
  return mapped;
}

}  // namespace

bool IsWildcardHost(std::string_view host) {
  const std::optional<in6_addr> address = ParseAddress(host);
  if (!address.has_value()) {
    return host == "*";
  }
  const bool is_any_v4 = IN6_IS_ADDR_V4MAPPED(&*address) &&
                         std::count(&address->s6_addr[12], &address->s6_addr[16], 0) == 4;
  return IN6_IS_ADDR_UNSPECIFIED(&*address) || is_any_v4;
}

bool IsLoopbackHost(std::string_view host) {
  const std::optional<in6_addr> address = ParseAddress(host);
  if (!address.has_value()) {
    return host == "localhost";
  }
  const bool is_v4 = IN6_IS_ADDR_V4MAPPED(&*address);
  return is_v4 ? address->s6_addr[12] == 127 : IN6_IS_ADDR_LOOPBACK(&*address);
}

std::optional<std::size_t> ParseBytes(std::string_view text) {
  std::uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc()) {
    return std::nullopt;
  }
  const std::string unit(end, text.data() + text.size());
  static const std::map<std::string, std::uint64_t> kUnits = {{"", 1},
                                                              {"B", 1},
                                                              {"KiB", 1ull << 10},
                                                              {"MiB", 1ull << 20},
                                                              {"GiB", 1ull << 30},
                                                              {"TiB", 1ull << 40}};
  const auto factor = kUnits.find(unit);
  if (factor == kUnits.end()) {
    return std::nullopt;
  }
  return CheckedMultiply(count, factor->second);
}

}  // namespace baton
