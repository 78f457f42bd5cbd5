#include "tests/support/prompts.h"

#include <array>
#include <random>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "tests/support/test_models.h"

namespace baton {
namespace {

constexpr std::array kPeople = {"Ada",    "Boris", "Chiara", "Dmitri",
                                "Esther", "Farid", "Greta",  "Haruki"};
constexpr std::array kPlaces = {"the harbour",     "a quiet library", "the old observatory",
                                "Lisbon",          "the night train", "a field of barley",
                                "the third floor", "Nairobi"};
constexpr std::array kActs = {"repaired", "measured", "described", "borrowed",
                              "painted",  "counted",  "forgot",    "sold"};
constexpr std::array kThings = {"a brass telescope",  "the longest bridge",  "seven letters",
                                "an apple tree",      "the missing chapter", "two violins",
                                "a map of the coast", "the steam engine"};
constexpr std::array kNames = {"total", "index", "reader", "limit",
                               "queue", "score", "buffer", "height"};
constexpr std::array kCalls = {"parse",  "merge",  "split",  "encode",
                               "rotate", "sample", "append", "reverse"};

// Only the engine's raw values are the same on every machine; the standard distributions are not.
class Chooser {
 public:
  explicit Chooser(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t Below(std::uint64_t count) { return engine_() % count; }
  template <typename Array>
  std::string_view From(const Array& words) {
    return words[Below(words.size())];
  }

 private:
  std::mt19937_64 engine_;
};

std::string Sentence(Chooser& choose) {
  const std::string person(choose.From(kPeople));
  const std::string act(choose.From(kActs));
  const std::string thing(choose.From(kThings));
  const std::string place(choose.From(kPlaces));
  return absl::StrCat(person, " ", act, " ", thing, " in ", place, ", and in ",
                      1800 + choose.Below(220), " it was worth ", choose.Below(10'000), ".",
                      choose.Below(100), " crowns. ");
}

std::string Function(Chooser& choose) {
  const std::string call(choose.From(kCalls));
  const std::string name(choose.From(kNames));
  const std::string other(choose.From(kNames));
  return absl::StrCat("\n\ndef ", call, "_", name, "(", other, "):\n    ", name, " = ",
                      choose.Below(1000), "\n    for i in range(", other, "):\n        ", name,
                      " += i * ", choose.Below(17), "\n    return ", name, "\n\n");
}

std::string List(Chooser& choose) {
  std::string text = "\n";
  for (std::uint64_t i = 1; i < 3 + choose.Below(3); ++i) {
    absl::StrAppend(&text, i, ". ", std::string(choose.From(kThings)), " (",
                    std::string(choose.From(kPeople)), ")\n");
  }
  return text;
}

}  // namespace

std::string VariedText(std::uint64_t seed, std::size_t bytes) {
  Chooser choose(seed);
  std::string text;
  while (text.size() < bytes) {
    const std::uint64_t kind = choose.Below(6);
    text += kind == 0 ? Function(choose) : kind == 1 ? List(choose) : Sentence(choose);
  }
  return text;
}

Tokens RandomTokens(std::uint64_t seed, std::size_t count, std::uint32_t first, std::uint32_t end) {
  Chooser choose(seed);
  Tokens tokens(count);
  for (std::uint32_t& token : tokens) {
    token = first + static_cast<std::uint32_t>(choose.Below(end - first));
  }
  return tokens;
}

Tokens TinyPrompt(std::uint64_t seed, std::size_t count) {
  constexpr std::uint32_t kFirstPlainToken = 3;
  return RandomTokens(seed, count, kFirstPlainToken, kTinyVocabulary);
}

v1::CompleteRequest GreedyRequest(const Tokens& prompt, std::uint32_t max_tokens, v1::Path path) {
  v1::CompleteRequest request;
  request.mutable_tokens()->mutable_ids()->Add(prompt.begin(), prompt.end());
  request.mutable_sampling()->set_temperature(0);
  request.set_max_tokens(max_tokens);
  request.set_ignore_eos(true);
  request.set_path(path);
  return request;
}

}  // namespace baton
