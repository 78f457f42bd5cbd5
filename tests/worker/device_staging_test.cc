#include <gtest/gtest.h>

#include "kernels/cuda/handles.h"
#include "kvtransfer/inproc/inproc_transport.h"
#include "kvtransfer/ucx/ucx_transport.h"
#include "tests/emulation/host_device.h"
#include "tests/kvtransfer/transfer_harness.h"
#include "worker/device_staging_copier.h"

namespace baton {
namespace {

using emulated::HostDevice;

constexpr int kBlocks = 12;
constexpr int kPoolBlocks = 64;

KvLayout LayoutOf(std::size_t layer_bytes) {
  KvLayout layout = SmallLayout();
  layout.layer_bytes = layer_bytes;
  return layout;
}

// A node whose pool is in the memory of a device of its own.
struct EmulatedNode {
  EmulatedNode(TransportFactory inner, const KvLayout& of) : layout(of), contents(of, 1) {
    const std::size_t bytes = layout.block_bytes() * kPoolBlocks;
    pool = *cuda::DeviceBuffer<std::byte>::Create(device, bytes);
    mirror = *cuda::PinnedBuffer<std::byte>::Create(device, bytes);
    stream = *cuda::Stream::Create(device);
    std::fill(mirror.span().begin(), mirror.span().end(), TestPool::kCanary);
    Copy(CopyDirection::kHostToDevice);
    node = std::make_unique<Node>(
        NodeTransport(staged::MakeTransport(
                          std::move(inner), MakeDeviceStagingCopier(device),
                          {.slot_bytes = 16 * 1024, .send_slots = 2, .receive_slots = 2}, stats),
                      MemoryKind::kCudaDevice),
        [&](TransferOptions& options) {
          options.pool = {.base = pool.data(),
                          .layout = layout,
                          .blocks = kPoolBlocks,
                          .kind = MemoryKind::kCudaDevice};
        },
        layout, 1);
  }

  // The whole pool from the mirror or to it.
  void Copy(CopyDirection direction) {
    const bool to_device = direction == CopyDirection::kHostToDevice;
    ASSERT_TRUE(device
                    .Copy({.destination = to_device ? pool.data() : mirror.data(),
                           .source = to_device ? mirror.data() : pool.data(),
                           .bytes = pool.size_bytes(),
                           .direction = direction},
                          stream.get())
                    .ok());
    ASSERT_TRUE(stream.Synchronize().ok());
  }
  std::byte* InMirror(BlockId block) {
    return mirror.data() + block.value() * layout.block_bytes();
  }

  KvLayout layout;
  TestPool contents;
  HostDevice device{{.memory_bytes = 64 << 20}};
  cuda::DeviceBuffer<std::byte> pool;
  cuda::PinnedBuffer<std::byte> mirror;
  cuda::Stream stream;
  std::shared_ptr<staged::StagingStats> stats = std::make_shared<staged::StagingStats>();
  std::unique_ptr<Node> node;
};

class DeviceStaging : public testing::TestWithParam<std::string> {
 protected:
  DeviceStaging() { ucx::SetDefaults(); }

  TransportFactory Plain() {
    return GetParam() == "ucx" ? ucx::MakeTransport({}) : inproc::MakeTransport(hub_);
  }
  HandoffId Begin(EmulatedNode& prefill, EmulatedNode& decode) {
    for (std::size_t i = 0; i < kBlocks; ++i) {
      const std::vector<std::byte> content = prefill.contents.Content(i);
      std::copy(content.begin(), content.end(), prefill.InMirror(sources_[i]));
    }
    prefill.Copy(CopyDirection::kHostToDevice);
    const HandoffId id = HandoffId::Make();
    EXPECT_TRUE(prefill.node->Offer(id, *decode.node, sources_).ok());
    EXPECT_TRUE(decode.node->Fetch(id, *prefill.node, MapFrom(0, destinations_)).ok());
    prefill.node->service->MarkReady(
        id, {.block_count = kBlocks, .layer_count = prefill.layout.layers});
    prefill.node->service->FinishComputing(id);
    return id;
  }

  const std::vector<BlockId> sources_ = Scattered(kBlocks, kPoolBlocks, 7);
  const std::vector<BlockId> destinations_ = Scattered(kBlocks, kPoolBlocks, 11);
  std::shared_ptr<inproc::Hub> hub_ = inproc::MakeHub();
};

TEST_P(DeviceStaging, MovesBlocksFromDeviceToDevice) {
  // Of whole 16 bytes, which kernels move, and not.
  for (const std::size_t layer_bytes : {1040, 1000}) {
    SCOPED_TRACE(testing::Message() << layer_bytes << " bytes a layer");
    EmulatedNode prefill(Plain(), LayoutOf(layer_bytes));
    EmulatedNode decode(Plain(), LayoutOf(layer_bytes));
    prefill.device.ResetCounts();
    const HandoffId id = Begin(prefill, decode);
    ASSERT_TRUE(decode.node->fetches.WaitEnd(id));
    ASSERT_EQ(decode.node->fetches.Get(id).landed, 1) << decode.node->fetches.Get(id).why;
    EXPECT_TRUE(WaitUntil([&] { return prefill.node->IsIdle() && decode.node->IsIdle(); }));
    const HostDevice::Counts counts = prefill.device.counts();
    EXPECT_EQ(counts.other_work, layer_bytes == 1040 ? 4 : 0) << "kernels";
    // One that fills the pool.
    EXPECT_EQ(counts.copies, layer_bytes == 1040 ? 1 : 1 + kBlocks);

    decode.Copy(CopyDirection::kDeviceToHost);
    for (std::size_t i = 0; i < kBlocks; ++i) {
      const std::vector<std::byte> content = decode.contents.Content(i);
      EXPECT_TRUE(std::equal(content.begin(), content.end(), decode.InMirror(destinations_[i])))
          << "block " << i;
    }
    int untouched = 0;
    for (std::uint32_t block = 0; block < kPoolBlocks; ++block) {
      const std::byte* bytes = decode.InMirror(BlockId(block));
      untouched += std::all_of(bytes, bytes + decode.layout.block_bytes(),
                               [](std::byte b) { return b == TestPool::kCanary; })
                       ? 1
                       : 0;
    }
    EXPECT_EQ(untouched, kPoolBlocks - kBlocks);
  }
}

// Whatever fails on a device fails every later call too; nothing may be left behind.
TEST_P(DeviceStaging, ALostDeviceEndsTheHandoff) {
  for (const bool prefill_fails : {true, false}) {
    EmulatedNode prefill(Plain(), SmallLayout());
    EmulatedNode decode(Plain(), SmallLayout());
    // The first piece of work of one is its own copy of the pool, so it fails after that.
    if (!prefill_fails) {
      decode.device.FailNextWork("an illegal memory access");
    }
    HandoffId id;
    if (prefill_fails) {
      const HandoffId first = Begin(prefill, decode);
      ASSERT_TRUE(decode.node->fetches.WaitEnd(first));
      ASSERT_TRUE(WaitUntil([&] { return prefill.node->IsIdle() && decode.node->IsIdle(); }));
      prefill.device.FailNextWork("an illegal memory access");
      id = HandoffId::Make();
      EXPECT_TRUE(prefill.node->Offer(id, *decode.node, sources_).ok());
      EXPECT_TRUE(decode.node->Fetch(id, *prefill.node, MapFrom(0, destinations_)).ok());
      prefill.node->service->MarkReady(id, {.block_count = kBlocks, .layer_count = 5});
      prefill.node->service->FinishComputing(id);
    } else {
      id = Begin(prefill, decode);
    }
    ASSERT_TRUE(decode.node->fetches.WaitEnd(id));
    EXPECT_EQ(decode.node->fetches.Get(id).why.code(), absl::StatusCode::kUnavailable)
        << decode.node->fetches.Get(id).why;
    prefill.node->service->Withdraw(id, absl::CancelledError("tried elsewhere"));
    EXPECT_TRUE(WaitUntil([&] { return prefill.node->IsIdle() && decode.node->IsIdle(); }));
    EXPECT_TRUE(WaitUntil([&] { return prefill.stats->free_send_slots == 2; }));
    EXPECT_TRUE(WaitUntil([&] { return decode.stats->free_receive_slots == 2; }));
  }
}

INSTANTIATE_TEST_SUITE_P(Transports,
                         DeviceStaging,
                         testing::Values("inproc", "ucx"),
                         [](const auto& transport) { return transport.param; });

TEST(DeviceStagingCopier, ACopyIsDoneWhenItIsSaidToBe) {
  HostDevice device({.memory_bytes = 1 << 20});
  auto memory = *cuda::DeviceBuffer<std::byte>::Create(device, 4096);
  const auto copier = *MakeDeviceStagingCopier(device)();
  const std::span<std::byte> slot = *copier->AllocatePinned(2048);
  const auto wait = [&](CopyId copy) {
    std::optional<absl::Status> done;
    EXPECT_TRUE(WaitUntil([&] { return (done = copier->Poll(copy)).has_value(); }));
    EXPECT_TRUE(done->ok()) << *done;
  };
  for (std::size_t i = 0; i < slot.size(); ++i) {
    slot[i] = static_cast<std::byte>(i * 7 >> 2);
  }
  const std::vector<std::byte> content(slot.begin(), slot.end());
  // Pieces apart from each other and in another order; then one that no kernel moves.
  for (const std::size_t piece : {std::size_t{1024}, std::size_t{1000}}) {
    const std::vector<std::span<std::byte>> to = {{memory.data() + 2048, piece},
                                                  {memory.data() + 16, piece}};
    std::copy(content.begin(), content.end(), slot.begin());
    wait(*copier->StartToDevice(slot.data(), to));
    std::fill(slot.begin(), slot.end(), std::byte{0});
    const std::vector<std::span<const std::byte>> from(to.begin(), to.end());
    // More than one under way, each with what it needs for itself.
    const CopyId first = *copier->StartToHost(std::span(from).first(1), slot.data() + piece);
    const CopyId both = *copier->StartToHost(from, slot.data());
    wait(both);
    wait(first);
    EXPECT_TRUE(std::equal(slot.begin(), slot.begin() + 2 * static_cast<std::ptrdiff_t>(piece),
                           content.begin()));
  }
}

TEST(DeviceStagingCopier, SaysWhatThereIsNoMemoryFor) {
  HostDevice device;
  const auto copier = *MakeDeviceStagingCopier(device)();
  device.FailAllocation(1);
  EXPECT_EQ(copier->AllocatePinned(1 << 20).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace baton
