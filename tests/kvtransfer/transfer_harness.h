#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/check.h"
#include "common/file.h"
#include "kvtransfer/mapped/mapped_transport.h"
#include "kvtransfer/staged/staged_transport.h"
#include "kvtransfer/transfer_service.h"
#include "tests/kvtransfer/fake_device.h"
#include "tests/support/fake_clock.h"
#include "tests/support/wait_until.h"

namespace baton {

inline constexpr std::chrono::milliseconds kTestPatience = std::chrono::seconds(20);

inline KvLayout SmallLayout() {
  return {.layers = 5,
          .kv_heads = 1,
          .head_dim = 16,
          .element_type = "bf16",
          .layout_id = "test",
          .layer_bytes = 1040};
}

// Memory of a pool as a worker has it where peers may map it.
class TestPoolFile {
 public:
  explicit TestPoolFile(std::size_t pool_bytes)
      : pool_bytes_(pool_bytes),
        file_bytes_((pool_bytes + mapped::kCookieBytes + 4095) / 4096 * 4096),
        fd_(memfd_create("baton-test-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    BATON_CHECK(ftruncate(fd_.get(), static_cast<off_t>(file_bytes_)) == 0 &&
                fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    void* base = mmap(nullptr, file_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    BATON_CHECK(base != MAP_FAILED);
    base_ = static_cast<std::byte*>(base);
  }
  ~TestPoolFile() { munmap(base_, file_bytes_); }
  TestPoolFile(const TestPoolFile&) = delete;
  TestPoolFile& operator=(const TestPoolFile&) = delete;

  mapped::PoolFile file() const {
    return {.fd = fd_.get(), .base = base_, .pool_bytes = pool_bytes_, .file_bytes = file_bytes_};
  }

 private:
  const std::size_t pool_bytes_;
  const std::size_t file_bytes_;
  const UniqueFd fd_;
  std::byte* base_ = nullptr;
};

// What a node's service is made with: a transport for messages, beside it perhaps the mapping of
// pools, around both perhaps one that damages, and around that perhaps staging.
struct NodeTransport {
  // NOLINTNEXTLINE(google-explicit-constructor): a plain transport is the usual case
  NodeTransport(TransportFactory factory, MemoryKind kind = MemoryKind::kHost)
      : messages(std::move(factory)), pool_kind(kind) {}

  TransportFactory messages;
  bool mapped = false;
  std::function<TransportFactory(TransportFactory)> around;
  std::function<TransportFactory(TransportFactory)> outermost;
  MemoryKind pool_kind = MemoryKind::kHost;

  // All of it but the mapping, which needs a pool.
  TransportFactory All() const {
    TransportFactory factory = around ? around(messages) : messages;
    return outermost ? outermost(std::move(factory)) : factory;
  }
};

// A pool whose bytes tell block, layer and place, or a canary where nothing has been written.
class TestPool {
 public:
  TestPool(KvLayout layout, int blocks, bool in_file = false)
      : layout_(std::move(layout)),
        blocks_(blocks),
        memory_(in_file ? 0 : size_bytes()),
        file_(in_file ? std::make_unique<TestPoolFile>(size_bytes()) : nullptr),
        base_(in_file ? file_->file().base : memory_.data()) {
    std::fill_n(base_, size_bytes(), kCanary);
  }

  static constexpr std::byte kCanary{0xc5};

  PoolRegion region() { return {.base = base_, .layout = layout_, .blocks = blocks_}; }
  // The same bytes on a device.
  PoolRegion device_region() {
    if (device_ == nullptr) {
      device_ = std::make_unique<FakeDeviceMemory>(std::span(base_, size_bytes()));
    }
    return {.base = device_->address(),
            .layout = layout_,
            .blocks = blocks_,
            .kind = MemoryKind::kCudaDevice};
  }
  const KvLayout& layout() const { return layout_; }
  std::byte* block(BlockId id) { return base_ + id.value() * layout_.block_bytes(); }
  const TestPoolFile* file() const { return file_.get(); }

  // What `seed`, a name for the content, puts into a block.
  std::vector<std::byte> Content(std::uint64_t seed) const {
    std::vector<std::byte> content(layout_.block_bytes());
    std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (std::byte& byte : content) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      byte = static_cast<std::byte>(state);
    }
    return content;
  }
  void Fill(BlockId id, std::uint64_t seed) {
    const std::vector<std::byte> content = Content(seed);
    std::memcpy(block(id), content.data(), content.size());
  }
  bool Holds(BlockId id, std::uint64_t seed) {
    const std::vector<std::byte> content = Content(seed);
    return std::memcmp(block(id), content.data(), content.size()) == 0;
  }
  bool IsUntouched(BlockId id) {
    return std::all_of(block(id), block(id) + layout_.block_bytes(),
                       [](std::byte b) { return b == kCanary; });
  }

 private:
  std::size_t size_bytes() const {
    return layout_.block_bytes() * static_cast<std::size_t>(blocks_);
  }

  KvLayout layout_;
  int blocks_;
  std::vector<std::byte> memory_;
  std::unique_ptr<TestPoolFile> file_;
  std::byte* base_;  // in one of the two
  std::unique_ptr<FakeDeviceMemory> device_;
};

// `inner` for a pool in device memory, by way of slots so few and small that each message of a
// Node takes several and most wait for them.
inline NodeTransport Staged(TransportFactory inner,
                            std::shared_ptr<FakeCopies> copies = std::make_shared<FakeCopies>()) {
  NodeTransport transport(std::move(inner));
  transport.pool_kind = MemoryKind::kCudaDevice;
  transport.outermost = [copies = std::move(copies)](TransportFactory messages) {
    return staged::MakeTransport(std::move(messages), MakeFakeCopier(copies),
                                 {.slot_bytes = 6000, .send_slots = 4, .receive_slots = 5});
  };
  return transport;
}

class CountingPin final : public RegionPin {
 public:
  explicit CountingPin(std::atomic<int>& alive, std::function<void()> on_drop = nullptr)
      : alive_(alive), on_drop_(std::move(on_drop)) {
    ++alive_;
  }
  ~CountingPin() override {
    if (on_drop_) {
      on_drop_();
    }
    --alive_;
  }

 private:
  std::atomic<int>& alive_;
  std::function<void()> on_drop_;
};

// Remembers the one event of each handoff. Thread-safe.
class OfferRecorder final : public OfferSink {
 public:
  struct End {
    int calls = 0;
    PrefillHandoffState state{};
    absl::Status why;
    OfferStats stats;
    int pins_alive = 0;  // of the whole node, when the event came
  };

  explicit OfferRecorder(const std::atomic<int>& pins) : pins_(pins) {}

  void OnEnd(HandoffId id,
             PrefillHandoffState state,
             const absl::Status& why,
             const OfferStats& stats) override {
    absl::MutexLock lock(&mutex_);
    End& end = ends_[id];
    end = {.calls = end.calls + 1, .state = state, .why = why, .stats = stats, .pins_alive = pins_};
  }
  End Get(HandoffId id) const {
    absl::MutexLock lock(&mutex_);
    const auto found = ends_.find(id);
    return found == ends_.end() ? End() : found->second;
  }
  bool WaitEnd(HandoffId id) const {
    return WaitUntil([&] { return Get(id).calls > 0; });
  }

 private:
  const std::atomic<int>& pins_;
  mutable absl::Mutex mutex_;
  std::map<HandoffId, End> ends_;
};

class FetchRecorder final : public FetchSink {
 public:
  struct End {
    int landed = 0;
    int failed = 0;
    absl::Status why;
    std::vector<int> whole_blocks;
    FetchStats stats;
    int calls() const { return landed + failed; }
  };

  void OnLanded(HandoffId id, const FetchStats& stats) override {
    absl::MutexLock lock(&mutex_);
    ++ends_[id].landed;
    ends_[id].stats = stats;
  }
  void OnFailed(HandoffId id,
                const absl::Status& why,
                const std::vector<int>& whole_blocks) override {
    absl::MutexLock lock(&mutex_);
    ++ends_[id].failed;
    ends_[id].why = why;
    ends_[id].whole_blocks = whole_blocks;
  }
  End Get(HandoffId id) const {
    absl::MutexLock lock(&mutex_);
    const auto found = ends_.find(id);
    return found == ends_.end() ? End() : found->second;
  }
  bool WaitEnd(HandoffId id) const {
    return WaitUntil([&] { return Get(id).calls() > 0; });
  }

 private:
  mutable absl::Mutex mutex_;
  std::map<HandoffId, End> ends_;
};

// The defaults, or so many times as long on a machine as slow as the one that tests/rdma emulates.
inline TransferTimes TimesUnderTest() {
  TransferTimes times;
  const char* slowness = std::getenv("BATON_TEST_SLOWNESS");
  if (const int factor = slowness == nullptr ? 1 : std::atoi(slowness); factor > 1) {
    for (Duration* time :
         {&times.suspect, &times.dead, &times.lease, &times.connect, &times.let_go}) {
      *time *= factor;
    }
  }
  return times;
}

// One process's worth: a pool, its service, and what was reported.
struct Node {
  explicit Node(NodeTransport transport,
                const std::function<void(TransferOptions&)>& adjust = nullptr,
                KvLayout layout = SmallLayout(),
                int blocks = 64)
      : pool(std::move(layout), blocks, transport.mapped), offers(pins) {
    if (transport.mapped) {
      transport.messages =
          mapped::MakeTransport(std::move(transport.messages), pool.file()->file());
    }
    options.instance = InstanceId::Make();
    options.pool = transport.pool_kind == MemoryKind::kHost ? pool.region() : pool.device_region();
    options.message_bytes = 16 * 1024;  // three small blocks: several messages for each handoff
    options.times = TimesUnderTest();
    if (adjust) {
      adjust(options);
    }
    absl::StatusOr<std::unique_ptr<TransferService>> started =
        TransferService::Start(options, transport.All());
    if (started.ok()) {
      service = *std::move(started);
    } else {
      failure = started.status();
    }
  }

  absl::Status Offer(HandoffId id,
                     const Node& peer,
                     const std::vector<BlockId>& blocks,
                     std::uint64_t epoch = 1) {
    return service->Offer({.id = id,
                           .epoch = epoch,
                           .peer = peer.options.instance,
                           .blocks = blocks,
                           .pin = std::make_unique<CountingPin>(pins, on_pin_drop),
                           .sink = &offers});
  }
  void ReadyAll(HandoffId id, int blocks) {
    service->MarkReady(id, {.first_block = 0,
                            .block_count = blocks,
                            .first_layer = 0,
                            .layer_count = pool.layout().layers});
    service->FinishComputing(id);
  }
  absl::Status Fetch(HandoffId id,
                     const Node& peer,
                     const std::vector<BlockMapping>& blocks,
                     std::uint64_t epoch = 1,
                     Duration patience = kTestPatience) {
    return service->Fetch({.id = id,
                           .epoch = epoch,
                           .address = peer.service->address(),
                           .peer = peer.options.instance,
                           .blocks = blocks,
                           .pin = std::make_unique<CountingPin>(pins, on_pin_drop),
                           .deadline = options.clock->Now() + patience,
                           .sink = &fetches});
  }
  bool IsIdle() const {
    const TransferStats now = service->stats();
    return now.offers == 0 && now.fetches == 0 && now.parked_fetches == 0 &&
           now.quarantined_blocks == 0 && pins == 0;
  }

  TestPool pool;
  TransferOptions options;
  std::atomic<int> pins = 0;
  std::function<void()> on_pin_drop;  // of offers and fetches made from then on
  OfferRecorder offers;
  FetchRecorder fetches;
  absl::Status failure;
  std::unique_ptr<TransferService> service;  // last: stops before the sinks and the pool go
};

// Blocks `count` of a pool, scattered: neighbours in the prompt are not neighbours in memory.
inline std::vector<BlockId> Scattered(int count, int pool_blocks, int step) {
  std::vector<BlockId> blocks;
  for (int i = 0; i < count; ++i) {
    blocks.emplace_back(static_cast<std::uint32_t>((i * step + 3) % pool_blocks));
  }
  return blocks;
}

inline std::vector<BlockMapping> MapFrom(int first, const std::vector<BlockId>& destinations) {
  std::vector<BlockMapping> mappings;
  for (std::size_t i = static_cast<std::size_t>(first); i < destinations.size(); ++i) {
    mappings.push_back({.source_index = static_cast<int>(i), .destination = destinations[i]});
  }
  return mappings;
}

}  // namespace baton
