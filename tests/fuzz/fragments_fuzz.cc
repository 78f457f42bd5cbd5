// Payloads that arrive in parts: UCX's fragments and what announces them, and gRPC's frames.
// Checked: what decodes is what encodes, and no part is written outside of the destinations or
// twice.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/check.h"
#include "kvtransfer/grpc_stream/incoming_payload.h"
#include "kvtransfer/ucx/ucx_fragments.h"
#include "tests/fuzz/fuzz_input.h"

namespace baton {
namespace {

constexpr std::byte kCanary{0xc5};

void Decode(const std::string& bytes) {
  std::string_view header;
  if (const auto announced = ucx::DecodeAnnouncement(bytes, header)) {
    BATON_CHECK(ucx::EncodeAnnouncement(*announced, header) == bytes);
  }
  if (const auto answer = ucx::DecodeAnswer(bytes)) {
    BATON_CHECK(ucx::EncodeAnswer(*answer).substr(0, 8) == bytes.substr(0, 8));
  }
  if (const auto fragment = ucx::DecodeFragmentHeader(bytes)) {
    BATON_CHECK(ucx::EncodeFragmentHeader(*fragment) == bytes);
  }
}

// Frames of any size, before and after it is known where they go.
void Receive(FuzzInput& input) {
  const auto total = static_cast<std::size_t>(1 + input.Below(600));
  std::vector<std::byte> memory(2 * total + 1, kCanary);
  std::vector<std::span<std::byte>> destinations;
  for (std::size_t named = 0; named < total;) {
    const std::size_t length =
        std::min(total - named, static_cast<std::size_t>(1 + input.Below(200)));
    destinations.push_back(std::span(memory).subspan(2 * named, length));
    named += length;
  }
  const auto copied = std::make_shared<CopiedChecksum>();
  ReceivePlan plan{.accept = input.Below(8) != 0, .later = input.Flip(), .copied = copied};
  if (!plan.later) {
    plan.destinations = destinations;
  }
  grpc_stream::IncomingPayload payload(plan, total);
  std::string expected;
  for (int frames = input.Below(12); frames > 0 && !payload.whole(); --frames) {
    if (plan.accept && !payload.placed() && input.Below(3) == 0) {
      payload.Place(destinations);
    }
    const grpc_stream::Frame frame{
        .payload = std::string(static_cast<std::size_t>(1 + input.Below(300)),
                               static_cast<char>(input.Take<std::uint8_t>())),
        .crc32c = 9};
    if (frame.payload.size() <= total - expected.size()) {
      expected += frame.payload;
    }
    payload.Take(frame);
    BATON_CHECK(payload.whole() == (expected.size() == total));
  }
  BATON_CHECK(payload.accepted() == plan.accept);
  if (plan.accept && !payload.placed()) {
    payload.Place(destinations);
  }
  std::string written;
  for (const std::span<std::byte> part : destinations) {
    written.append(reinterpret_cast<const char*>(part.data()), part.size());
    BATON_CHECK(part.data()[part.size()] == kCanary);
  }
  if (plan.accept) {
    BATON_CHECK(written.starts_with(expected));
    BATON_CHECK(copied->bytes == expected.size());
    BATON_CHECK(copied->sent.has_value() == payload.whole());
  } else {
    BATON_CHECK(written.find_first_not_of(static_cast<char>(kCanary)) == std::string::npos);
  }
  BATON_CHECK(memory.back() == kCanary);
}

}  // namespace
}  // namespace baton

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  baton::Decode(std::string(reinterpret_cast<const char*>(data), size));
  baton::FuzzInput input(data, size);
  baton::Receive(input);
  return 0;
}
