#include "planner/rates_file.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDeepestNesting = 8;
constexpr std::size_t kMostBytes = std::size_t{16} << 20;

bool IsTooDeep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kDeepestNesting) {
        return true;
      }
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

absl::Status Problem(const std::string& field, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

// Watches the parser's events for a name that an object already has: the parser itself would take
// the last one.
class DuplicateFinder {
 public:
  void Observe(Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      names_.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      names_.pop_back();
    } else if (event == Json::parse_event_t::key) {
      auto name = parsed.get<std::string>();
      if (!names_.back().insert(name).second && duplicate_.empty()) {
        duplicate_ = std::move(name);
      }
    }
  }

  const std::string& duplicate() const { return duplicate_; }  // empty: none

 private:
  std::vector<std::set<std::string>> names_;  // of the objects that are open
  std::string duplicate_;
};

// Reads the members of one JSON object into fields, and names what is missing, extra or of another
// type. `path` is in front of every field: "prefill[2].".
class ObjectReader {
 public:
  ObjectReader(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  void Number(const char* name, double& out) {
    if (const Json* member = Find(name, /*required=*/true)) {
      TakeNumber(name, *member, out);
    }
  }
  void OptionalNumber(const char* name, double& out) {
    if (const Json* member = Find(name, /*required=*/false)) {
      TakeNumber(name, *member, out);
    }
  }
  void OptionalNumber(const char* name, std::optional<double>& out) {
    if (const Json* member = Find(name, /*required=*/false)) {
      TakeNumber(name, *member, out.emplace());
    }
  }
  void Text(const char* name, std::string& out, bool required) {
    const Json* member = Find(name, required);
    if (member == nullptr) {
      return;
    }
    if (!member->is_string()) {
      return Fail(name, "not a string");
    }
    out = member->get<std::string>();
  }
  // Calls `read` for every element, which is an object.
  void Array(const char* name, bool required, const std::function<void(ObjectReader&)>& read) {
    const Json* member = Find(name, required);
    if (member == nullptr) {
      return;
    }
    if (!member->is_array()) {
      return Fail(name, "not an array");
    }
    for (std::size_t i = 0; i < member->size() && status_.ok(); ++i) {
      const std::string element = absl::StrCat(path_, name, "[", i, "]");
      if (!(*member)[i].is_object()) {
        status_ = Problem(element, "not an object");
        return;
      }
      ObjectReader reader((*member)[i], element + ".");
      read(reader);
      status_.Update(reader.Finish());
    }
  }

  absl::Status Finish() {
    for (const auto& [name, value] : object_.items()) {
      if (std::find(known_.begin(), known_.end(), name) == known_.end()) {
        status_.Update(Problem(path_ + name, "no member of that name"));
      }
    }
    return status_;
  }

 private:
  const Json* Find(const char* name, bool required) {
    known_.emplace_back(name);
    const auto found = object_.find(name);
    if (found != object_.end()) {
      return &*found;
    }
    if (required) {
      Fail(name, "missing");
    }
    return nullptr;
  }

  void TakeNumber(const char* name, const Json& member, double& out) {
    if (!member.is_number()) {
      return Fail(name, "not a number");
    }
    out = member.get<double>();
  }

  void Fail(const char* name, const char* what) { status_.Update(Problem(path_ + name, what)); }

  const Json& object_;  // owned by the caller of ParseRates
  std::string path_;
  std::vector<std::string> known_;
  absl::Status status_;
};

// What `baton status --json` prints; its `rates` is a rates file.
bool IsRouterStatus(const Json& root) {
  return root.contains("role") && root.contains("workers");
}

absl::Status ReadRates(const Json& root, MeasuredRates& rates) {
  ObjectReader reader(root, "");
  double version = 0;
  reader.Number("version", version);
  reader.Text("source", rates.source, /*required=*/false);
  reader.OptionalNumber("block_tokens", rates.block_tokens);
  reader.Number("kv_bytes_per_token", rates.kv_bytes_per_token);
  reader.OptionalNumber("layers", rates.layers);
  reader.OptionalNumber("max_batch_tokens", rates.max_batch_tokens);
  reader.OptionalNumber("kv_pool_tokens", rates.kv_pool_tokens);
  reader.OptionalNumber("fixed_share_in_prefill", rates.fixed_share_in_prefill);
  reader.Array("prefill", /*required=*/true, [&rates](ObjectReader& entry) {
    PrefillRate& rate = rates.prefill.emplace_back();
    entry.Number("prompt_tokens", rate.prompt_tokens);
    entry.Number("tokens_per_second", rate.tokens_per_second);
  });
  reader.Array("decode", /*required=*/true, [&rates](ObjectReader& entry) {
    DecodeStep& step = rates.decode.emplace_back();
    entry.Number("batch", step.batch);
    entry.Number("depth_tokens", step.depth_tokens);
    entry.Number("step_seconds", step.step_seconds);
  });
  reader.Array("transports", /*required=*/true, [&rates](ObjectReader& entry) {
    TransportRate& transport = rates.transports.emplace_back();
    entry.Text("name", transport.name, /*required=*/true);
    entry.Number("fixed_seconds", transport.fixed_seconds);
    entry.Number("bytes_per_second", transport.bytes_per_second);
  });
  reader.Array("measured", /*required=*/false, [&rates](ObjectReader& entry) {
    MeasuredRequest& request = rates.measured.emplace_back();
    entry.Text("transport", request.transport, /*required=*/false);
    request.disaggregated = !request.transport.empty();
    entry.Number("prompt_tokens", request.prompt_tokens);
    entry.OptionalNumber("running_sequences", request.running_sequences);
    entry.OptionalNumber("depth_tokens", request.depth_tokens);
    entry.Number("first_token_seconds", request.first_token_seconds);
  });
  RETURN_IF_ERROR(reader.Finish());
  if (version != 1) {
    return Problem("version", "not 1, the only one there is");
  }
  return rates.Validate();
}

}  // namespace

absl::StatusOr<MeasuredRates> ParseRates(const std::string& name, std::string_view text) {
  if (text.size() > kMostBytes) {
    return Problem(name, absl::StrCat("larger than ", kMostBytes, " bytes"));
  }
  if (IsTooDeep(text)) {
    return Problem(name, absl::StrCat("nested deeper than ", kDeepestNesting));
  }
  Json root;
  DuplicateFinder duplicates;
  try {
    root = Json::parse(text.begin(), text.end(),
                       [&](int /*depth*/, Json::parse_event_t event, const Json& parsed) {
                         duplicates.Observe(event, parsed);
                         return true;
                       });
  } catch (const Json::exception& error) {
    return Problem(name, absl::StrCat("not JSON: ", error.what()));
  }
  if (!duplicates.duplicate().empty()) {
    return Problem(name, absl::StrCat(duplicates.duplicate(), ": twice in one object"));
  }
  if (!root.is_object()) {
    return Problem(name, "not a JSON object");
  }
  if (IsRouterStatus(root)) {
    if (!root.contains("rates") || !root["rates"].is_object()) {
      return Problem(name, "rates: missing: only a router whose fleet was seen to work has them");
    }
    root = Json(root["rates"]);
  }
  MeasuredRates rates;
  if (const absl::Status status = ReadRates(root, rates); !status.ok()) {
    return Problem(name, std::string(status.message()));
  }
  return rates;
}

std::string FormatRates(const MeasuredRates& rates) {
  Json root = {{"version", 1},
               {"source", rates.source},
               {"block_tokens", rates.block_tokens},
               {"kv_bytes_per_token", rates.kv_bytes_per_token},
               {"layers", rates.layers},
               {"max_batch_tokens", rates.max_batch_tokens},
               {"fixed_share_in_prefill", rates.fixed_share_in_prefill},
               {"prefill", Json::array()},
               {"decode", Json::array()},
               {"transports", Json::array()},
               {"measured", Json::array()}};
  if (rates.kv_pool_tokens.has_value()) {
    root["kv_pool_tokens"] = *rates.kv_pool_tokens;
  }
  for (const PrefillRate& rate : rates.prefill) {
    root["prefill"].push_back(
        {{"prompt_tokens", rate.prompt_tokens}, {"tokens_per_second", rate.tokens_per_second}});
  }
  for (const DecodeStep& step : rates.decode) {
    root["decode"].push_back({{"batch", step.batch},
                              {"depth_tokens", step.depth_tokens},
                              {"step_seconds", step.step_seconds}});
  }
  for (const TransportRate& transport : rates.transports) {
    root["transports"].push_back({{"name", transport.name},
                                  {"fixed_seconds", transport.fixed_seconds},
                                  {"bytes_per_second", transport.bytes_per_second}});
  }
  for (const MeasuredRequest& request : rates.measured) {
    Json entry = {{"prompt_tokens", request.prompt_tokens},
                  {"running_sequences", request.running_sequences},
                  {"depth_tokens", request.depth_tokens},
                  {"first_token_seconds", request.first_token_seconds}};
    if (request.disaggregated) {
      entry["transport"] = request.transport;
    }
    root["measured"].push_back(std::move(entry));
  }
  return root.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace baton
