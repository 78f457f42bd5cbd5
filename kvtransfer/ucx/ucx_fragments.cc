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

constexpr std::size_t kFragmentHeaderBytes = 20;

template <typename Integer>
void Append(std::string& bytes, Integer value) {
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    bytes.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  }
}

// REQUIRES: so many bytes at `at`.
template <typename Integer>
Integer Read(std::string_view bytes, std::size_t at) {
  Integer value = 0;
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    value |= Integer{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  }
  return value;
}

}  // namespace

std::string EncodeAnnouncement(const Announcement& announcement, std::string_view header) {
  std::string bytes;
  Append(bytes, announcement.sequence);
  Append(bytes, announcement.payload_bytes);
  bytes.append(header);
  return bytes;
}

std::optional<Announcement> DecodeAnnouncement(std::string_view bytes, std::string_view& header) {
  if (bytes.size() < 16) {
    return std::nullopt;
  }
  header = bytes.substr(16);
  return Announcement{.sequence = Read<std::uint64_t>(bytes, 0),
                      .payload_bytes = Read<std::uint64_t>(bytes, 8)};
}

std::string EncodeAnswer(const Answer& answer) {
  std::string bytes;
  Append(bytes, answer.sequence);
  bytes.push_back(answer.accepted ? 1 : 0);
  return bytes;
}

std::optional<Answer> DecodeAnswer(std::string_view bytes) {
  if (bytes.size() != 9) {
    return std::nullopt;
  }
  return Answer{.sequence = Read<std::uint64_t>(bytes, 0), .accepted = bytes[8] == 1};
}

std::string EncodeFragmentHeader(const FragmentHeader& header) {
  std::string bytes;
  Append(bytes, header.sequence);
  Append(bytes, header.offset);
  Append(bytes, header.crc32c);
  return bytes;
}

std::optional<FragmentHeader> DecodeFragmentHeader(std::string_view bytes) {
  if (bytes.size() != kFragmentHeaderBytes) {
    return std::nullopt;
  }
  return FragmentHeader{.sequence = Read<std::uint64_t>(bytes, 0),
                        .offset = Read<std::uint64_t>(bytes, 8),
                        .crc32c = Read<std::uint32_t>(bytes, 16)};
}

std::vector<ucp_dt_iov_t> FragmentCutter::Next() {
  std::vector<ucp_dt_iov_t> fragment;
  std::size_t bytes = 0;
  while (!done()) {
    const bool full = bytes == kMostFragmentBytes ||
                      (fragment.size() >= kMostParts && bytes >= kLeastFragmentBytes);
    if (full) {
      break;
    }
    const ucp_dt_iov_t& part = parts_[next_];
    const std::size_t length = std::min(part.length - taken_, kMostFragmentBytes - bytes);
    fragment.push_back({.buffer = static_cast<std::byte*>(part.buffer) + taken_, .length = length});
    bytes += length;
    taken_ += length;
    if (taken_ == part.length) {
      ++next_;
      taken_ = 0;
    }
  }
  return fragment;
}

}  // namespace baton::ucx
