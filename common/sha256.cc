#include "common/sha256.h"

#include <openssl/evp.h>

#include "common/check.h"

namespace baton {
namespace {

// Looking the algorithm up takes OpenSSL 3 longer than hashing a block of tokens; so does a new
// context.
const EVP_MD* Algorithm() {
  static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  BATON_CHECK(algorithm != nullptr);
  return algorithm;
}

}  // namespace

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  BATON_CHECK(context_->evp != nullptr);
  BATON_CHECK(EVP_DigestInit_ex(context_->evp, Algorithm(), nullptr) == 1);
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Update(std::string_view bytes) {
  BATON_CHECK(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()) == 1);
}

Digest Sha256::Finish() {
  Digest digest;
  BATON_CHECK(EVP_DigestFinal_ex(context_->evp, digest.data(), nullptr) == 1);
  return digest;
}

Digest Sha256Of(std::string_view bytes) {
  thread_local const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(
      EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  BATON_CHECK(context != nullptr);
  Digest digest;
  BATON_CHECK(EVP_DigestInit_ex(context.get(), Algorithm(), nullptr) == 1 &&
              EVP_DigestUpdate(context.get(), bytes.data(), bytes.size()) == 1 &&
              EVP_DigestFinal_ex(context.get(), digest.data(), nullptr) == 1);
  return digest;
}

std::string ToHex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    hex.push_back(kDigits[byte >> 4]);
    hex.push_back(kDigits[byte & 15]);
  }
  return hex;
}

std::string ToHex(const Digest& digest) {
  return ToHex(AsBytes(digest));
}

}  // namespace baton
