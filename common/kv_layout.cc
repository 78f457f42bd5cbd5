#include "common/kv_layout.h"

#include <bit>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/byte_io.h"

namespace baton {
namespace {

// Calls visit(name, value of a, value of b) for every field, so that fingerprint and difference
// cannot drift apart.
template <typename Visit>
void VisitFields(const EngineIdentity& a, const EngineIdentity& b, Visit visit) {
  visit("model_fingerprint", ToHex(a.model_fingerprint), ToHex(b.model_fingerprint));
  visit("tokenizer_fingerprint", ToHex(a.tokenizer_fingerprint), ToHex(b.tokenizer_fingerprint));
  visit("layers", std::int64_t{a.kv.layers}, std::int64_t{b.kv.layers});
  visit("kv_heads", std::int64_t{a.kv.kv_heads}, std::int64_t{b.kv.kv_heads});
  visit("head_dim", std::int64_t{a.kv.head_dim}, std::int64_t{b.kv.head_dim});
  visit("block_tokens", std::int64_t{a.kv.block_tokens}, std::int64_t{b.kv.block_tokens});
  visit("element_type", a.kv.element_type, b.kv.element_type);
  visit("layout_id", a.kv.layout_id, b.kv.layout_id);
  visit("layer_bytes", static_cast<std::int64_t>(a.kv.layer_bytes),
        static_cast<std::int64_t>(b.kv.layer_bytes));
  visit("arithmetic", a.arithmetic, b.arithmetic);
  visit("rope_base", a.rope_base, b.rope_base);
  visit("rms_epsilon", a.rms_epsilon, b.rms_epsilon);
}

struct FieldWriter {
  ByteWriter& out;

  void operator()(const char*, const std::string& value, const std::string&) const {
    out.Put(static_cast<std::uint64_t>(value.size()));
    out.PutBytes(value);
  }
  void operator()(const char*, std::int64_t value, std::int64_t) const { out.Put(value); }
  void operator()(const char*, double value, double) const {
    out.Put(std::bit_cast<std::uint64_t>(value));
  }
};

}  // namespace

Digest LayoutFingerprint(const EngineIdentity& identity) {
  ByteWriter writer;
  VisitFields(identity, identity, FieldWriter{writer});
  return Sha256Of(writer.bytes());
}

std::string DescribeDifference(const EngineIdentity& ours, const EngineIdentity& theirs) {
  std::string text;
  VisitFields(ours, theirs, [&text](const char* name, const auto& a, const auto& b) {
    if (a != b) {
      absl::StrAppend(&text, text.empty() ? "" : "; ", name, ": ours ", a, ", theirs ", b);
    }
  });
  return text;
}

}  // namespace baton
