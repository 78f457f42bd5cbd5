// Any conversation: a peer that says whatever the fuzzer invents, well-formed and not, in any
// order, to a process with one open offer and one open fetch, on a transport that reports what it
// likes when it likes. Checked all along: memory is named for blocks of the open fetch only and
// never twice at a time, every handoff has exactly one end, and all pins are dropped.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "common/check.h"
#include "common/crc32c.h"
#include "common/log.h"
#include "kvtransfer/transfer_core.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/support/fake_clock.h"

namespace baton {
namespace {

constexpr int kBlocks = 16;
constexpr int kLayers = 3;
constexpr std::size_t kLayerBytes = 64;
constexpr std::byte kCanary{0xc5};
constexpr std::uint64_t kOfferEpoch = 7;
constexpr std::uint64_t kFetchEpoch = 9;
constexpr std::uint32_t kOffered[] = {1, 2, 3, 4};
constexpr BlockMapping kFetched[] = {{0, BlockId(8)}, {1, BlockId(11)}, {3, BlockId(10)}};

template <typename Id>
Id Named(std::uint8_t name) {
  Id id;
  id.bytes.fill(name);
  return id;
}
const HandoffId kOffer = Named<HandoffId>(1);
const HandoffId kFetch = Named<HandoffId>(2);
const InstanceId kUs = Named<InstanceId>(3);
const InstanceId kThem = Named<InstanceId>(4);

constexpr std::uint32_t kTheirBlocks = 16;

// Says only what it is told to say. Also reads the pool of whoever describes one, which is all
// zeros.
class ScriptedTransport final : public Transport, public PoolReader {
 public:
  explicit ScriptedTransport(TransportHandler& handler) : handler_(handler) {}

  std::string address() const override { return "us:1"; }
  absl::Status RegisterRegion(const MemoryRegion&) override { return absl::OkStatus(); }
  absl::StatusOr<PeerId> Connect(const std::string&) override { return Open(); }
  absl::Status Send(PeerId peer, OutgoingMessage message) override {
    if (!open_.contains(peer)) {
      return absl::UnavailableError("closed");
    }
    sent_.push_back({peer, message.token});
    return absl::OkStatus();
  }
  void Place(PeerId, TransferToken, std::vector<std::span<std::byte>>) override {
    BATON_CHECK(false);  // for device memory only
  }
  void Close(PeerId peer) override { closing_.push_back(peer); }
  bool Progress() override {
    const bool any = !closing_.empty();
    for (const PeerId peer : std::exchange(closing_, {})) {
      End(peer);
    }
    return any;
  }
  std::optional<int> PrepareToSleep() override { return std::nullopt; }
  std::string CarrierOf(PeerId) const override { return "scripted"; }
  std::vector<PoolReader*> readers() override { return {this}; }

  TransportKind kind() const override { return TransportKind::kMapped; }
  std::string Door() const override { return "ours"; }
  absl::Status Open(PeerId peer, std::string_view door, std::uint64_t pool_bytes) override {
    if (door != "theirs") {
      return absl::FailedPreconditionError("another door");
    }
    pool_bytes_[peer] = pool_bytes;
    return absl::OkStatus();
  }
  absl::Status Read(PeerId peer, PoolRead read) override {
    if (!open_.contains(peer)) {
      return absl::UnavailableError("closed");
    }
    ReceivePlan plan{.accept = true, .destinations = {}, .token = read.token};
    std::size_t total = 0;
    for (const PoolRange& range : read.ranges) {
      BATON_CHECK(range.offset + range.destination.size() <= pool_bytes_.at(peer));
      // Neighbours are read at once; here each piece is looked at by itself.
      for (std::span<std::byte> rest = range.destination; !rest.empty();) {
        const std::size_t piece = std::min<std::size_t>(rest.size(), kLayerBytes);
        plan.destinations.push_back(rest.first(piece));
        rest = rest.subspan(piece);
        total += piece;
      }
    }
    CheckPlan(plan, total);
    arriving_.push_back({peer, std::move(plan), std::string(total, '\0')});
    return absl::OkStatus();
  }

  void Accept() { handler_.OnAccepted(Open()); }
  PeerId AnyPeer(FuzzInput& input) const {
    return PeerId(static_cast<std::uint64_t>(1 + input.Below(static_cast<int>(next_peer_))));
  }
  void Control(PeerId peer, const std::string& bytes) {
    if (open_.contains(peer)) {
      handler_.OnControl(peer, bytes);
    }
  }
  void Data(PeerId peer, const std::string& header, std::string payload) {
    if (!open_.contains(peer)) {
      return;
    }
    ReceivePlan plan = handler_.OnData(peer, header, payload.size());
    if (plan.accept) {
      CheckPlan(plan, payload.size());
      arriving_.push_back({peer, std::move(plan), std::move(payload)});
    }
  }
  // The memory may be written up to here.
  void FinishReceive(bool intact) {
    if (arriving_.empty()) {
      return;
    }
    const Arriving done = std::move(arriving_.front());
    arriving_.pop_front();
    std::size_t offset = 0;
    for (const std::span<std::byte> to : done.plan.destinations) {
      std::memcpy(to.data(), done.payload.data() + offset, to.size());
      offset += to.size();
    }
    handler_.OnReceived(done.peer, done.plan.token,
                        intact ? absl::OkStatus() : absl::UnavailableError("broken"));
  }
  void FinishSend(bool good) {
    if (!sent_.empty()) {
      const auto [peer, token] = sent_.front();
      sent_.pop_front();
      handler_.OnSent(peer, token, good ? absl::OkStatus() : absl::UnavailableError("broken"));
    }
  }
  void End(PeerId peer) {
    if (open_.erase(peer) == 0) {
      return;
    }
    const absl::Status gone = absl::UnavailableError("gone");
    for (std::size_t i = 0; i < sent_.size();) {
      if (sent_[i].first == peer) {
        const TransferToken token = sent_[i].second;
        sent_.erase(sent_.begin() + static_cast<std::ptrdiff_t>(i));
        handler_.OnSent(peer, token, gone);
      } else {
        ++i;
      }
    }
    for (std::size_t i = 0; i < arriving_.size();) {
      if (arriving_[i].peer == peer) {
        const TransferToken token = arriving_[i].plan.token;
        arriving_.erase(arriving_.begin() + static_cast<std::ptrdiff_t>(i));
        handler_.OnReceived(peer, token, gone);
      } else {
        ++i;
      }
    }
    handler_.OnClosed(peer, gone);
  }

  bool fetch_ended = false;
  std::byte* pool = nullptr;

 private:
  struct Arriving {
    PeerId peer;
    ReceivePlan plan;
    std::string payload;
  };

  PeerId Open() {
    const PeerId peer(next_peer_++);
    open_.emplace(peer, true);
    return peer;
  }

  // Every destination is a piece of a block of the open fetch, and nobody writes there already.
  void CheckPlan(const ReceivePlan& plan, std::size_t payload_bytes) const {
    BATON_CHECK(!fetch_ended);
    std::size_t total = 0;
    for (const std::span<std::byte> to : plan.destinations) {
      total += to.size();
      const auto begin = static_cast<std::size_t>(to.data() - pool);
      const std::size_t block = begin / (kLayers * kLayerBytes);
      BATON_CHECK(!to.empty() && (begin + to.size() - 1) / (kLayers * kLayerBytes) == block);
      BATON_CHECK(std::any_of(std::begin(kFetched), std::end(kFetched), [&](const auto& mapping) {
        return mapping.destination.value() == block;
      }));
      for (const Arriving& other : arriving_) {
        for (const std::span<std::byte> taken : other.plan.destinations) {
          BATON_CHECK(to.data() >= taken.data() + taken.size() ||
                      taken.data() >= to.data() + to.size());
        }
      }
    }
    BATON_CHECK(total == payload_bytes);
  }

  TransportHandler& handler_;
  std::uint64_t next_peer_ = 1;
  std::map<PeerId, bool> open_;
  std::map<PeerId, std::uint64_t> pool_bytes_;
  std::vector<PeerId> closing_;
  std::deque<std::pair<PeerId, TransferToken>> sent_;
  std::deque<Arriving> arriving_;
};

struct Ends final : OfferSink, FetchSink {
  void OnEnd(HandoffId, PrefillHandoffState, const absl::Status&, const OfferStats&) override {
    BATON_CHECK(++offer == 1);
  }
  void OnLanded(HandoffId, const FetchStats&) override { EndFetch(); }
  void OnFailed(HandoffId, const absl::Status& why, const std::vector<int>&) override {
    BATON_CHECK(!why.ok());
    EndFetch();
  }
  void EndFetch() {
    BATON_CHECK(++fetch == 1);
    transport->fetch_ended = true;
  }
  int offer = 0;
  int fetch = 0;
  ScriptedTransport* transport = nullptr;
};

struct Pin final : RegionPin {
  explicit Pin(int& count) : alive(count) { ++alive; }
  ~Pin() override { --alive; }
  int& alive;
};

wire::Welcome Greeting(InstanceId who, bool readable) {
  wire::Welcome welcome{.instance = who, .pool_blocks = kTheirBlocks};
  if (readable) {
    welcome.doors.push_back({.kind = TransportKind::kMapped, .description = "theirs"});
  }
  return welcome;
}

wire::Ready InventReady(FuzzInput& input, HandoffId id, std::uint64_t epoch, std::uint32_t round) {
  const bool right = input.Flip();
  wire::Ready ready{
      .handoff = id,
      .epoch = epoch,
      .round = round,
      .sequence = input.Take<std::uint32_t>(),
      .first_layer = static_cast<std::uint16_t>(right ? 0 : input.Below(kLayers + 1)),
      .layer_count = static_cast<std::uint16_t>(right ? kLayers : input.Below(kLayers + 2))};
  const int mask = right ? 0b1011 : input.Below(64);
  for (std::uint32_t block = 0; block < 6; ++block) {
    if ((mask >> block & 1) != 0) {
      ready.blocks.push_back(
          {.source = block,
           .place = input.Below(8) == 0 ? input.Take<std::uint32_t>() : block + 3});
    }
  }
  const std::string zeros(ready.blocks.size() * ready.layer_count * kLayerBytes, '\0');
  ready.crc32c = Crc32c(zeros) + (input.Below(4) == 0 ? 1 : 0);
  return ready;
}

// A message that makes sense more often than not.
wire::Message Invent(FuzzInput& input) {
  const HandoffId ids[] = {kOffer, kFetch, HandoffId(), Named<HandoffId>(9)};
  const HandoffId id = ids[input.Below(4)];
  const std::uint64_t epochs[] = {kOfferEpoch, kFetchEpoch, 0, ~std::uint64_t{0}};
  const std::uint64_t epoch =
      input.Flip() ? (id == kOffer ? kOfferEpoch : kFetchEpoch) : epochs[input.Below(4)];
  const auto round = static_cast<std::uint32_t>(input.Below(4));
  const InstanceId who = input.Below(8) == 0 ? kUs : kThem;
  switch (input.Below(11)) {
    case 0:
      return wire::Hello{.instance = who};
    case 1:
      return Greeting(who, input.Flip());
    case 8:
      return InventReady(input, id, epoch, round);
    case 9:
      return wire::Released{.handoff = id, .epoch = epoch};
    case 2: {
      wire::Fetch fetch{.handoff = id,
                        .epoch = epoch,
                        .round = round,
                        .credit_bytes = input.Take<std::uint64_t>(),
                        .reads = static_cast<std::uint16_t>(input.Below(4))};
      for (int i = input.Below(4); i > 0; --i) {
        fetch.blocks.push_back({.first = static_cast<std::uint32_t>(input.Below(6)),
                                .count = input.Flip() ? 1 : input.Take<std::uint32_t>(),
                                .first_layer = static_cast<std::uint16_t>(input.Below(4)),
                                .layer_count = static_cast<std::uint16_t>(input.Below(5))});
      }
      return fetch;
    }
    case 3:
      return wire::Complete{.handoff = id,
                            .epoch = epoch,
                            .round = round,
                            .messages = input.Take<std::uint32_t>(),
                            .bytes = input.Take<std::uint64_t>()};
    case 4:
      return wire::Ack{
          .handoff = id, .epoch = epoch, .confirm = static_cast<std::uint16_t>(input.Below(2))};
    case 5:
      return wire::Cancel{.handoff = id, .epoch = epoch, .code = input.Take<std::uint16_t>()};
    case 6:
      return wire::Error{.handoff = id,
                         .epoch = epoch,
                         .code = input.Take<std::uint16_t>(),
                         .text = input.Bytes(20)};
    case 7:
      return wire::Ping{.sequence = input.Take<std::uint64_t>(), .renewed = {id}};
    default:
      return wire::Pong{.sequence = input.Take<std::uint64_t>()};
  }
}

void SayData(FuzzInput& input, ScriptedTransport& transport) {
  const PeerId peer = transport.AnyPeer(input);
  wire::Data data{.handoff = input.Below(8) == 0 ? kOffer : kFetch,
                  .epoch = input.Below(8) == 0 ? kOfferEpoch : kFetchEpoch,
                  .round = static_cast<std::uint32_t>(1 + input.Below(2)),
                  .sequence = static_cast<std::uint32_t>(input.Below(4)),
                  .first_layer = static_cast<std::uint16_t>(input.Below(kLayers + 1)),
                  .layer_count = static_cast<std::uint16_t>(input.Below(kLayers + 2))};
  data.checksum_follows = input.Below(8) == 0 ? 1 : 0;
  int mask = input.Below(64);
  if (input.Below(4) == 0) {  // exactly what is wanted
    data.first_layer = 0;
    data.layer_count = kLayers;
    mask = 0b1011;
  }
  for (std::uint32_t block = 0; block < 6; ++block) {
    if ((mask >> block & 1) != 0) {
      data.blocks.push_back(block);
    }
  }
  std::size_t bytes = data.blocks.size() * data.layer_count * kLayerBytes;
  if (input.Below(8) == 0) {
    bytes = input.Take<std::uint16_t>();
  }
  const std::string payload(bytes, static_cast<char>(input.Take<std::uint8_t>()));
  data.crc32c = Crc32c(payload, 0) + (input.Below(4) == 0 ? 1 : 0);
  transport.Data(peer, wire::Encode(data), payload);
}

void Act(FuzzInput& input, TransferCore& core, ScriptedTransport& transport, FakeClock& clock) {
  switch (input.Below(14)) {
    case 0:
      transport.Control(transport.AnyPeer(input), input.Bytes(300));
      break;
    case 1: {
      const PeerId peer = transport.AnyPeer(input);
      const std::string header = input.Bytes(300);
      transport.Data(peer, header, std::string(input.Take<std::uint16_t>(), 'x'));
      break;
    }
    case 2:
    case 3:
    case 4:
    case 5: {
      const PeerId peer = transport.AnyPeer(input);
      transport.Control(peer, wire::Encode(Invent(input)));
      break;
    }
    case 6:
    case 7:
      SayData(input, transport);
      break;
    case 8:
      transport.FinishReceive(input.Below(8) != 0);
      break;
    case 9:
      transport.FinishSend(input.Below(8) != 0);
      break;
    case 10:
      transport.End(transport.AnyPeer(input));
      break;
    case 11:
      transport.Accept();
      break;
    case 12:
      clock.Advance(std::chrono::milliseconds(input.Below(8) == 0 ? 1500 : input.Below(100)));
      core.Step();
      break;
    default:
      switch (input.Below(4)) {
        case 0:
          core.server().MarkReady(kOffer, {.first_block = input.Below(4),
                                           .block_count = 1,
                                           .first_layer = 0,
                                           .layer_count = kLayers});
          break;
        case 1:
          core.server().FinishComputing(kOffer);
          break;
        case 2:
          core.server().Withdraw(kOffer, absl::CancelledError("gone"));
          break;
        default:
          core.fetcher().Cancel(kFetch);
      }
  }
}

void Converse(FuzzInput input) {
  std::vector<std::byte> pool(kBlocks * kLayers * kLayerBytes, kCanary);
  FakeClock clock;
  const KvLayout layout{.layers = kLayers,
                        .kv_heads = 1,
                        .head_dim = 1,
                        .element_type = "bf16",
                        .layout_id = "fuzz",
                        .layer_bytes = kLayerBytes};
  const TransferOptions options{.instance = kUs,
                                .pool = {.base = pool.data(), .layout = layout, .blocks = kBlocks},
                                .message_bytes = 2 * kLayerBytes,
                                .clock = &clock};
  ScriptedTransport* transport = nullptr;
  auto core = TransferCore::Create(options, [&](TransportHandler& handler) {
    auto made = std::make_unique<ScriptedTransport>(handler);
    transport = made.get();
    return absl::StatusOr<std::unique_ptr<Transport>>(std::move(made));
  });
  BATON_CHECK(core.ok());
  transport->pool = pool.data();
  Ends ends;
  ends.transport = transport;
  int pins = 0;
  OfferRequest offer{.id = kOffer, .epoch = kOfferEpoch, .peer = kThem, .sink = &ends};
  for (const std::uint32_t block : kOffered) {
    offer.blocks.emplace_back(block);
  }
  offer.pin = std::make_unique<Pin>(pins);
  (*core)->server().Offer(std::move(offer));
  (*core)->fetcher().Start({.id = kFetch,
                            .epoch = kFetchEpoch,
                            .address = "them:1",
                            .peer = kThem,
                            .blocks = {std::begin(kFetched), std::end(kFetched)},
                            .pin = std::make_unique<Pin>(pins),
                            .deadline = clock.Now() + std::chrono::seconds(20),
                            .sink = &ends});
  if (input.Below(8) != 0) {  // else the greetings are the fuzzer's too
    transport->Control(PeerId(1), wire::Encode(Greeting(kThem, input.Flip())));
    transport->Accept();
    transport->Control(PeerId(2), wire::Encode(wire::Hello{.instance = kThem}));
  }
  constexpr int kSteps = 120;
  for (int i = 0; i < kSteps; ++i) {
    Act(input, **core, *transport, clock);
    (*core)->Step();
  }
  (*core)->Shutdown(Duration::zero());
  BATON_CHECK(ends.offer == 1 && ends.fetch == 1 && pins == 0);
  core->reset();
  for (std::size_t i = 0; i < pool.size(); ++i) {
    const std::size_t block = i / (kLayers * kLayerBytes);
    BATON_CHECK(pool[i] == kCanary || block == 8 || block == 10 || block == 11);
  }
}

}  // namespace
}  // namespace baton

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  // Every peer that is lost or refused would be a line.
  baton::SetUpLog({.component = "fuzz", .level = baton::LogLevel::kError});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  baton::Converse(baton::FuzzInput(data, size));
  return 0;
}
