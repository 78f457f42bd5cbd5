#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvtransfer/ucx/ucx_handles.h"

// How a long payload travels over TCP. UCX 1.13's own rendezvous copies a scattered payload once
// more on either side there, and its receiver's memory only after it has been read; so the sender
// says what it has, the receiver answers when it has named the place, and the payload follows in
// messages of one fragment each, which UCX can send from where the payload lies:
//
//   announcement  uint64 sequence, uint64 bytes of the payload, header of the message
//   answer        uint64 sequence, uint8: 1 wanted, 0 not
//   fragment      uint64 sequence, uint64 offset, uint32 CRC32C as header; the bytes
//
// The CRC32C is that of the payload up to the end of the fragment, or 0 where the message asks for
// none: taken when the fragment is about to leave, so that the kernel finds its bytes in the cache.
// Integers are little-endian. Fragments of a message come in the order of their offsets; anything
// else, and fragments that nobody waits for, are dropped.
namespace baton::ucx {

// Payloads from here on travel in fragments; shorter ones with their header.
inline constexpr std::size_t kFragmentedBytes = std::size_t{8} * 1024;

struct Announcement {
  std::uint64_t sequence = 0;
  std::uint64_t payload_bytes = 0;
};

std::string EncodeAnnouncement(const Announcement& announcement, std::string_view header);
// nullopt when malformed; `header` is what follows, in `bytes`.
std::optional<Announcement> DecodeAnnouncement(std::string_view bytes, std::string_view& header);

struct Answer {
  std::uint64_t sequence = 0;
  bool accepted = false;
};
std::string EncodeAnswer(const Answer& answer);
std::optional<Answer> DecodeAnswer(std::string_view bytes);

struct FragmentHeader {
  std::uint64_t sequence = 0;
  std::uint64_t offset = 0;
  std::uint32_t crc32c = 0;
};
std::string EncodeFragmentHeader(const FragmentHeader& header);
std::optional<FragmentHeader> DecodeFragmentHeader(std::string_view bytes);

// Cuts a payload into fragments, in order. A value; the parts are the caller's and outlive it.
class FragmentCutter {
 public:
  explicit FragmentCutter(std::span<const ucp_dt_iov_t> parts) : parts_(parts) {}

  bool done() const { return next_ == parts_.size(); }
  // REQUIRES: not done.
  std::vector<ucp_dt_iov_t> Next();

 private:
  std::span<const ucp_dt_iov_t> parts_;
  std::size_t next_ = 0;   // part that the next fragment begins in
  std::size_t taken_ = 0;  // bytes of it that have gone
};

}  // namespace baton::ucx
