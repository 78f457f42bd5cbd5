// Any bytes: the decoder of kvtransfer's messages refuses them with a status, or they mean exactly
// what encodes to them again.

#include <cstdint>
#include <string_view>

#include "common/check.h"
#include "kvtransfer/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace baton;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<wire::Message> message = wire::Decode(bytes);
  if (message.ok()) {
    BATON_CHECK(wire::Encode(*message) == bytes);
    if (const auto* error = std::get_if<wire::Error>(&*message)) {
      BATON_CHECK(!wire::ToStatus(*error).ok());
    }
  }
  return 0;
}
