#include "planner/rates.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "planner/field_check.h"

namespace baton {
namespace {

constexpr double kMostTokens = 1e9;
constexpr double kMostSeconds = 1e6;
constexpr double kMostRate = 1e18;
constexpr std::size_t kMostEntries = 10'000;

absl::Status Problem(const std::string& field, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

absl::Status CheckCount(const std::string& field, std::size_t count, std::size_t least) {
  if (count < least) {
    return Problem(field, "empty");
  }
  return count <= kMostEntries ? absl::OkStatus()
                               : Problem(field, absl::StrCat("more than ", kMostEntries));
}

std::string Entry(const char* table, std::size_t index, const char* field) {
  return absl::StrCat(table, "[", index, "].", field);
}

absl::Status CheckPrefill(const std::vector<PrefillRate>& rates) {
  RETURN_IF_ERROR(CheckCount("prefill", rates.size(), 1));
  double last_tokens = 0;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    const std::string field = Entry("prefill", i, "prompt_tokens");
    RETURN_IF_ERROR(CheckRange(field, rates[i].prompt_tokens, 1, kMostTokens));
    RETURN_IF_ERROR(CheckPositive(Entry("prefill", i, "tokens_per_second"),
                                  rates[i].tokens_per_second, kMostRate));
    if (rates[i].prompt_tokens <= last_tokens) {
      return Problem(field, absl::StrCat(rates[i].prompt_tokens, " does not rise above ",
                                         last_tokens, ", the entry before"));
    }
    last_tokens = rates[i].prompt_tokens;
  }
  return absl::OkStatus();
}

absl::Status CheckDecode(const std::vector<DecodeStep>& steps) {
  RETURN_IF_ERROR(CheckCount("decode", steps.size(), 1));
  std::set<std::pair<double, double>> seen;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    RETURN_IF_ERROR(CheckRange(Entry("decode", i, "batch"), steps[i].batch, 1, 1e6));
    RETURN_IF_ERROR(
        CheckRange(Entry("decode", i, "depth_tokens"), steps[i].depth_tokens, 0, kMostTokens));
    RETURN_IF_ERROR(
        CheckPositive(Entry("decode", i, "step_seconds"), steps[i].step_seconds, kMostSeconds));
    if (!seen.insert({steps[i].batch, steps[i].depth_tokens}).second) {
      return Problem(Entry("decode", i, "batch"), "the same batch and depth_tokens twice");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTransports(const std::vector<TransportRate>& transports) {
  RETURN_IF_ERROR(CheckCount("transports", transports.size(), 0));
  std::set<std::string> seen;
  for (std::size_t i = 0; i < transports.size(); ++i) {
    const TransportRate& transport = transports[i];
    if (transport.name.empty() || !seen.insert(transport.name).second) {
      return Problem(Entry("transports", i, "name"),
                     transport.name.empty() ? "empty" : "the same name twice");
    }
    RETURN_IF_ERROR(CheckRange(Entry("transports", i, "fixed_seconds"), transport.fixed_seconds, 0,
                               kMostSeconds));
    RETURN_IF_ERROR(CheckPositive(Entry("transports", i, "bytes_per_second"),
                                  transport.bytes_per_second, kMostRate));
  }
  return absl::OkStatus();
}

absl::Status CheckMeasured(const MeasuredRates& rates) {
  RETURN_IF_ERROR(CheckCount("measured", rates.measured.size(), 0));
  for (std::size_t i = 0; i < rates.measured.size(); ++i) {
    const MeasuredRequest& request = rates.measured[i];
    RETURN_IF_ERROR(
        CheckRange(Entry("measured", i, "prompt_tokens"), request.prompt_tokens, 1, kMostTokens));
    RETURN_IF_ERROR(CheckRange(Entry("measured", i, "running_sequences"), request.running_sequences,
                               0, rates.max_batch_tokens - 1));
    RETURN_IF_ERROR(
        CheckRange(Entry("measured", i, "depth_tokens"), request.depth_tokens, 0, kMostTokens));
    RETURN_IF_ERROR(CheckPositive(Entry("measured", i, "first_token_seconds"),
                                  request.first_token_seconds, kMostSeconds));
    if (request.disaggregated && rates.FindTransport(request.transport) == nullptr) {
      return Problem(Entry("measured", i, "transport"),
                     absl::StrCat("\"", request.transport, "\" is not one of transports"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasuredRates::Validate() const {
  RETURN_IF_ERROR(CheckRange("block_tokens", block_tokens, 1, 65'536));
  RETURN_IF_ERROR(CheckPositive("kv_bytes_per_token", kv_bytes_per_token, 1e12));
  RETURN_IF_ERROR(CheckRange("layers", layers, 1, 10'000));
  RETURN_IF_ERROR(CheckRange("max_batch_tokens", max_batch_tokens, 1, 1e7));
  if (kv_pool_tokens.has_value()) {
    RETURN_IF_ERROR(CheckPositive("kv_pool_tokens", *kv_pool_tokens, 1e15));
  }
  RETURN_IF_ERROR(CheckRange("fixed_share_in_prefill", fixed_share_in_prefill, 0, 1));
  RETURN_IF_ERROR(CheckPrefill(prefill));
  RETURN_IF_ERROR(CheckDecode(decode));
  RETURN_IF_ERROR(CheckTransports(transports));
  return CheckMeasured(*this);
}

const TransportRate* MeasuredRates::FindTransport(const std::string& name) const {
  for (const TransportRate& transport : transports) {
    if (transport.name == name) {
      return &transport;
    }
  }
  return nullptr;
}

}  // namespace baton
