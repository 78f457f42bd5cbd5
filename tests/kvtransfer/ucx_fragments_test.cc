#include "kvtransfer/ucx/ucx_fragments.h"

#include <gtest/gtest.h>

#include <deque>
#include <numeric>

#include "kvtransfer/ucx/ucx_events.h"
#include "kvtransfer/ucx/ucx_transport.h"
#include "tests/kvtransfer/raw_peer.h"

namespace baton::ucx {
namespace {

std::size_t BytesOf(const std::vector<ucp_dt_iov_t>& parts) {
  return std::accumulate(
      parts.begin(), parts.end(), std::size_t{0},
      [](std::size_t sum, const ucp_dt_iov_t& part) { return sum + part.length; });
}

TEST(UcxFragments, CutInOrderWithoutLossAndWithinASegment) {
  for (const std::size_t part_bytes : {1u, 1000u, 12288u, 65536u, 245760u, 245761u, 368640u}) {
    SCOPED_TRACE(part_bytes);
    std::vector<std::byte> memory(2 * part_bytes * 40);
    std::vector<ucp_dt_iov_t> parts;
    for (std::size_t i = 0; i < 40; ++i) {
      parts.push_back({.buffer = &memory[2 * i * part_bytes], .length = part_bytes});
    }

    std::size_t at = 0;  // in the payload
    for (FragmentCutter cutter(parts); !cutter.done();) {
      const std::vector<ucp_dt_iov_t> fragment = cutter.Next();
      EXPECT_LE(BytesOf(fragment), 240u * 1024);
      EXPECT_TRUE(fragment.size() <= 15 || BytesOf(fragment) <= 64u * 1024 + part_bytes);
      for (const ucp_dt_iov_t& part : fragment) {
        EXPECT_EQ(part.buffer, &memory[2 * (at / part_bytes) * part_bytes + at % part_bytes]);
        at += part.length;
      }
    }
    EXPECT_EQ(at, part_bytes * 40);
  }
}

TEST(UcxFragments, MessagesHaveTheBytesThatTheyAreSaidToHave) {
  const std::string announcement = EncodeAnnouncement({0x0102, 0x0300}, "header");
  EXPECT_EQ(announcement, std::string("\2\1\0\0\0\0\0\0\0\3\0\0\0\0\0\0header", 22));
  std::string_view header;
  const std::optional<Announcement> announced = DecodeAnnouncement(announcement, header);
  ASSERT_TRUE(announced.has_value());
  EXPECT_EQ(announced->sequence, 0x0102u);
  EXPECT_EQ(announced->payload_bytes, 0x0300u);
  EXPECT_EQ(header, "header");

  EXPECT_EQ(EncodeAnswer({5, true}), std::string("\5\0\0\0\0\0\0\0\1", 9));
  EXPECT_TRUE(DecodeAnswer(EncodeAnswer({5, true}))->accepted);
  EXPECT_FALSE(DecodeAnswer(EncodeAnswer({5, false}))->accepted);
  const std::string fragment = EncodeFragmentHeader({7, 1u << 20, 0x01020304});
  EXPECT_EQ(fragment, std::string("\7\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\4\3\2\1", 20));
  EXPECT_EQ(DecodeFragmentHeader(fragment)->offset, 1u << 20);
  EXPECT_EQ(DecodeFragmentHeader(fragment)->crc32c, 0x01020304u);

  EXPECT_FALSE(DecodeAnnouncement(announcement.substr(0, 15), header).has_value());
  EXPECT_FALSE(DecodeAnswer(EncodeAnswer({5, true}).substr(1)).has_value());
  EXPECT_FALSE(DecodeFragmentHeader(fragment + "x").has_value());
}

// A peer that speaks UCX but not our rules.
class RawUcx {
 public:
  explicit RawUcx(const std::string& address)
      : context_(*MakeContext(Lanes::kAny)), worker_(*MakeWorker(context_.get())) {
    EXPECT_TRUE(events_.RegisterMessages(worker_.get()).ok());  // the answers are for nobody
    const SocketAddress target = *SocketAddress::Parse(address);
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                        UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    params.sockaddr = target.ForUcx();
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    EXPECT_EQ(ucp_ep_create(worker_.get(), &params, &endpoint_), UCS_OK);
  }

  void Send(unsigned id, const std::string& header, const std::string& payload) {
    sent_.push_back({header, payload});  // a deque: UCX reads them until they are sent
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
    const ucs_status_ptr_t request =
        ucp_am_send_nbx(endpoint_, id, sent_.back().first.data(), header.size(),
                        sent_.back().second.data(), payload.size(), &params);
    ASSERT_FALSE(UCS_PTR_IS_ERR(request));
    if (UCS_PTR_IS_PTR(request)) {
      ucp_request_free(request);
    }
  }
  void Progress() {
    while (ucp_worker_progress(worker_.get()) != 0) {
    }
  }

 private:
  std::deque<std::pair<std::string, std::string>> sent_;
  UcxEvents events_;
  UcpContext context_;
  UcpWorker worker_;
  ucp_ep_h endpoint_ = nullptr;
};

class FragmentsFromAStranger : public testing::Test {
 protected:
  FragmentsFromAStranger() {
    SetDefaults();
    server_ = std::make_unique<RawPeer>(MakeTransport({}));
    server_->plan = [this](std::size_t) {
      return ReceivePlan{
          .accept = true,
          .destinations = {std::span(memory_).subspan(10, 3), std::span(memory_).subspan(20, 5)},
          .token = TransferToken(++plans_)};
    };
    stranger_ = std::make_unique<RawUcx>(server_->transport->address());
  }
  bool Until(const std::function<bool()>& condition) {
    return server_->Until([&] {
      stranger_->Progress();
      return condition();
    });
  }
  void Announce(std::uint64_t sequence) {
    stranger_->Send(kAnnounceId, "", EncodeAnnouncement({sequence, 8}, "header"));
  }
  void Fragment(std::uint64_t sequence, std::uint64_t offset, const std::string& bytes) {
    stranger_->Send(kFragmentId, EncodeFragmentHeader({sequence, offset}), bytes);
  }
  std::string Text(std::size_t from, std::size_t count) const {
    return {reinterpret_cast<const char*>(&memory_[from]), count};
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(64, std::byte{'.'});
  std::uint64_t plans_ = 0;
  std::unique_ptr<RawPeer> server_;
  std::unique_ptr<RawUcx> stranger_;
};

TEST_F(FragmentsFromAStranger, OnlyWhatComesInItsPlaceIsTaken) {
  Fragment(1, 0, "unasked!");  // nothing was announced
  Announce(1);
  ASSERT_TRUE(Until([&] { return plans_ == 1; }));
  stranger_->Send(77, "no such", "message");
  Fragment(1, 3, "gap");         // not where the last one ended
  Fragment(1, 0, "too long!!");  // more than was announced
  Fragment(2, 0, "other");
  Fragment(1, 0, "abcd");
  Fragment(1, 0, "again");
  Fragment(1, 4, "efgh");
  Fragment(1, 8, "late");
  ASSERT_TRUE(Until([&] { return server_->received.size() == 1; }));

  EXPECT_TRUE(server_->received[0].status.ok()) << server_->received[0].status;
  EXPECT_EQ(Text(10, 3) + Text(20, 5), "abcdefgh");
  std::string rest = Text(0, 64);
  rest.replace(10, 3, "...").replace(20, 5, ".....");
  EXPECT_EQ(rest, std::string(64, '.'));
}

TEST_F(FragmentsFromAStranger, ANameInUseIsRefused) {
  Announce(1);
  Announce(1);
  ASSERT_TRUE(Until([&] { return server_->received.size() == 1; }));
  EXPECT_EQ(server_->received[0].token, TransferToken(2));
  EXPECT_FALSE(server_->received[0].status.ok());
  Fragment(1, 0, "abcdefgh");
  ASSERT_TRUE(Until([&] { return server_->received.size() == 2; }));
  EXPECT_EQ(server_->received[1].token, TransferToken(1));
  EXPECT_TRUE(server_->received[1].status.ok()) << server_->received[1].status;
}

TEST_F(FragmentsFromAStranger, TheRestNeverComes) {
  Announce(1);
  ASSERT_TRUE(Until([&] { return plans_ == 1; }));
  Fragment(1, 0, "abcd");
  ASSERT_TRUE(Until([&] { return Text(10, 3) == "abc"; }));

  server_->transport->Close(server_->accepted[0]);
  ASSERT_TRUE(Until([&] { return server_->received.size() == 1; }));
  EXPECT_FALSE(server_->received[0].status.ok());
}

}  // namespace
}  // namespace baton::ucx
