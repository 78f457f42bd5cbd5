#include "kvtransfer/ucx/ucx_fragments.h"

#include <algorithm>

namespace baton::ucx {
namespace {

// One fragment must fit into one segment of UCX's (256 KiB less headers, see ucx_settings.cc).
constexpr std::size_t kMostFragmentBytes = std::size_t{240} * 1024;
// UCX sends up to 16 ranges from where they lie, one of which is its own.
constexpr std::size_t kMostParts = 15;
// Many small ranges are worth more than 15 of them to a fragment, though UCX then copies them.
constexpr std::size_t kLeastFragmentBytes = std::size_t{64} * 1024;

void Append64(std::string& bytes, std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) {
    bytes.push_back(static_cast<char>(value >> shift & 0xff));
  }
}

// REQUIRES: eight bytes at `at`.
std::uint64_t Read64(std::string_view bytes, std::size_t at) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    value |= std::uint64_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  }
  return value;
}

}  // namespace

std::string EncodeAnnouncement(const Announcement& announcement, std::string_view header) {
  std::string bytes;
  Append64(bytes, announcement.sequence);
  Append64(bytes, announcement.payload_bytes);
  bytes.append(header);
  return bytes;
}

std::optional<Announcement> DecodeAnnouncement(std::string_view bytes, std::string_view& header) {
  if (bytes.size() < 16) {
    return std::nullopt;
  }
  header = bytes.substr(16);
  return Announcement{.sequence = Read64(bytes, 0), .payload_bytes = Read64(bytes, 8)};
}

std::string EncodeAnswer(const Answer& answer) {
  std::string bytes;
  Append64(bytes, answer.sequence);
  bytes.push_back(answer.accepted ? 1 : 0);
  return bytes;
}

std::optional<Answer> DecodeAnswer(std::string_view bytes) {
  if (bytes.size() != 9) {
    return std::nullopt;
  }
  return Answer{.sequence = Read64(bytes, 0), .accepted = bytes[8] == 1};
}

std::string EncodeFragmentHeader(const FragmentHeader& header) {
  std::string bytes;
  Append64(bytes, header.sequence);
  Append64(bytes, header.offset);
  return bytes;
}

std::optional<FragmentHeader> DecodeFragmentHeader(std::string_view bytes) {
  if (bytes.size() != 16) {
    return std::nullopt;
  }
  return FragmentHeader{.sequence = Read64(bytes, 0), .offset = Read64(bytes, 8)};
}

std::vector<std::vector<ucp_dt_iov_t>> CutIntoFragments(std::span<const ucp_dt_iov_t> parts) {
  std::vector<std::vector<ucp_dt_iov_t>> fragments(1);
  std::size_t bytes = 0;  // of the last fragment
  for (const ucp_dt_iov_t& part : parts) {
    std::size_t taken = 0;
    while (taken < part.length) {
      const bool full = bytes == kMostFragmentBytes ||
                        (fragments.back().size() >= kMostParts && bytes >= kLeastFragmentBytes);
      if (full) {
        fragments.emplace_back();
        bytes = 0;
      }
      const std::size_t length = std::min(part.length - taken, kMostFragmentBytes - bytes);
      fragments.back().push_back(
          {.buffer = static_cast<std::byte*>(part.buffer) + taken, .length = length});
      taken += length;
      bytes += length;
    }
  }
  return fragments;
}

}  // namespace baton::ucx
