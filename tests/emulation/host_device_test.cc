#include "tests/emulation/host_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/handles.h"

namespace baton::emulated {
namespace {

using cuda::DeviceBuffer;
using cuda::Event;
using cuda::GraphExec;
using cuda::PinnedBuffer;
using cuda::Stream;

constexpr std::size_t kCount = 100;

class HostDeviceTest : public testing::Test {
 protected:
  HostDevice device_;
  Stream stream_ = *Stream::Create(device_);
  DeviceBuffer<int> on_device_ = *DeviceBuffer<int>::Create(device_, kCount);
  PinnedBuffer<int> source_ = *PinnedBuffer<int>::Create(device_, kCount);
  PinnedBuffer<int> target_ = *PinnedBuffer<int>::Create(device_, kCount);

  absl::Status Upload() {
    return device_.Copy({.destination = on_device_.get(),
                         .source = source_.get(),
                         .bytes = source_.size_bytes(),
                         .direction = CopyDirection::kHostToDevice},
                        stream_.get());
  }
  absl::Status Download() {
    return device_.Copy({.destination = target_.get(),
                         .source = on_device_.get(),
                         .bytes = target_.size_bytes(),
                         .direction = CopyDirection::kDeviceToHost},
                        stream_.get());
  }
  // A kernel that adds to every element on the device.
  void AddOnDevice(int amount, const Stream& stream) {
    Enqueue(stream.get(), [data = on_device_.data(), amount] {
      std::for_each_n(data, kCount, [amount](int& value) { value += amount; });
    });
  }
  bool TargetHolds(int value) const {
    return std::ranges::all_of(target_.span(), [value](int each) { return each == value; });
  }
};

TEST_F(HostDeviceTest, CopiesRunInOrderWhenTheStreamIsWaitedFor) {
  std::ranges::fill(source_.span(), 7);
  ASSERT_TRUE(Upload().ok());
  AddOnDevice(5, stream_);
  ASSERT_TRUE(Download().ok());

  ASSERT_TRUE(stream_.Synchronize().ok());

  EXPECT_TRUE(TargetHolds(12));
}

// The whole point: every one of these reads right on a GPU that happens to be quick.
TEST_F(HostDeviceTest, AMissingWaitReadsWrongValues) {
  std::ranges::fill(source_.span(), 7);
  std::ranges::fill(target_.span(), 7);
  ASSERT_TRUE(Upload().ok());
  ASSERT_TRUE(Download().ok());
  EXPECT_TRUE(TargetHolds(-1)) << "the copy has not run, and the target is poisoned";

  // The source changes before the copy has read it.
  std::ranges::fill(source_.span(), 8);
  ASSERT_TRUE(stream_.Synchronize().ok());
  EXPECT_TRUE(TargetHolds(8));
}

TEST_F(HostDeviceTest, ACopyToAnIdleDeviceIsNotThereForAnotherStream) {
  std::ranges::fill(source_.span(), 7);
  ASSERT_TRUE(Upload().ok());
  ASSERT_TRUE(stream_.Synchronize().ok());
  ASSERT_TRUE(Upload().ok());  // the same values again
  const Stream other = *Stream::Create(device_);
  AddOnDevice(1, other);  // forgets to wait for the upload

  ASSERT_TRUE(other.Synchronize().ok());

  EXPECT_EQ(on_device_.data()[0], 0) << "-1 + 1: it saw the poison";
  ASSERT_TRUE(stream_.Synchronize().ok());
}

TEST_F(HostDeviceTest, AnEventOrdersTwoStreams) {
  const Stream other = *Stream::Create(device_);
  const Event uploaded = *Event::Create(device_);
  EXPECT_TRUE(*uploaded.IsDone()) << "never recorded";
  std::ranges::fill(source_.span(), 7);
  ASSERT_TRUE(Upload().ok());
  ASSERT_TRUE(uploaded.Record(stream_).ok());
  ASSERT_TRUE(device_.WaitForEvent(other.get(), uploaded.get()).ok());
  AddOnDevice(1, other);

  ASSERT_TRUE(other.Synchronize().ok());

  EXPECT_EQ(on_device_.data()[0], 8);
  EXPECT_TRUE(*uploaded.IsDone());
}

TEST_F(HostDeviceTest, AskingAnEventMakesProgressOnePieceAtATime) {
  const Event event = *Event::Create(device_);
  ASSERT_TRUE(Upload().ok());
  AddOnDevice(1, stream_);
  ASSERT_TRUE(event.Record(stream_).ok());

  EXPECT_FALSE(*event.IsDone());  // the copy
  EXPECT_FALSE(*event.IsDone());  // the kernel
  EXPECT_TRUE(*event.IsDone());
}

TEST_F(HostDeviceTest, WaitingForAnEventRunsOnlyWhatIsBeforeIt) {
  const Event event = *Event::Create(device_);
  std::ranges::fill(source_.span(), 7);
  ASSERT_TRUE(Upload().ok());
  ASSERT_TRUE(event.Record(stream_).ok());
  AddOnDevice(1, stream_);

  ASSERT_TRUE(event.Synchronize().ok());
  EXPECT_EQ(on_device_.data()[0], 7);
  ASSERT_TRUE(stream_.Synchronize().ok());
  EXPECT_EQ(on_device_.data()[0], 8);
}

TEST_F(HostDeviceTest, AGraphRunsWhenLaunchedAndAsOftenAsThat) {
  std::ranges::fill(source_.span(), 1);
  ASSERT_TRUE(Upload().ok());
  auto graph = GraphExec::Capture(device_, stream_, [&] {
    AddOnDevice(10, stream_);
    return Download();
  });
  ASSERT_TRUE(graph.ok()) << graph.status();
  ASSERT_TRUE(stream_.Synchronize().ok());
  EXPECT_EQ(on_device_.data()[0], 1) << "captured work has run";

  for (const int expected : {11, 21}) {
    ASSERT_TRUE(graph->Launch(stream_).ok());
    ASSERT_TRUE(stream_.Synchronize().ok());
    EXPECT_TRUE(TargetHolds(expected)) << expected;
  }
  const HostDevice::Counts counts = device_.counts();
  EXPECT_EQ(counts.captures, 1);
  EXPECT_EQ(counts.graph_launches, 2);
}

TEST_F(HostDeviceTest, ACaptureRefusesWhatCudaRefuses) {
  const Event event = *Event::Create(device_);
  absl::Status waited;
  absl::Status allocated;
  const auto graph = GraphExec::Capture(device_, stream_, [&] {
    waited = stream_.Synchronize();
    allocated = DeviceBuffer<int>::Create(device_, 1).status();
    return absl::AbortedError("an operation failed");
  });
  EXPECT_TRUE(absl::IsFailedPrecondition(waited)) << waited;
  EXPECT_TRUE(absl::IsFailedPrecondition(allocated)) << allocated;
  EXPECT_TRUE(absl::IsAborted(graph.status())) << graph.status();
  // The stream is as it was.
  EXPECT_TRUE(stream_.Synchronize().ok());
  EXPECT_TRUE(DeviceBuffer<int>::Create(device_, 1).ok());
}

TEST_F(HostDeviceTest, ACopyOfAWrongKindOrRangeIsRefused) {
  std::vector<int> pageable(kCount);
  const auto copy = [&](const void* to, const void* from, std::size_t bytes, CopyDirection way) {
    return device_.Copy({.destination = static_cast<std::byte*>(const_cast<void*>(to)),
                         .source = static_cast<const std::byte*>(from),
                         .bytes = bytes,
                         .direction = way},
                        stream_.get());
  };
  const std::size_t bytes = on_device_.size_bytes();
  using enum CopyDirection;
  EXPECT_TRUE(absl::IsInvalidArgument(copy(on_device_.data(), pageable.data(), 4, kHostToDevice)));
  EXPECT_TRUE(absl::IsInvalidArgument(copy(target_.data(), source_.data(), 4, kDeviceToHost)));
  EXPECT_TRUE(absl::IsInvalidArgument(copy(target_.data(), on_device_.data(), 4, kHostToDevice)));
  EXPECT_TRUE(
      absl::IsInvalidArgument(copy(target_.data() + 1, on_device_.data(), bytes, kDeviceToHost)));
  EXPECT_TRUE(
      absl::IsInvalidArgument(copy(target_.data(), on_device_.data() + 1, bytes, kDeviceToHost)));
  EXPECT_TRUE(copy(target_.data(), on_device_.data(), bytes, kDeviceToHost).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(device_.Fill(on_device_.get() + 1, 0, bytes, stream_.get())));
  EXPECT_TRUE(stream_.Synchronize().ok()) << "a refused call costs nothing";
}

TEST_F(HostDeviceTest, MemoryRunsOutAndComesBack) {
  const std::size_t free = *device_.FreeBytes();
  EXPECT_TRUE(absl::IsResourceExhausted(device_.AllocateDevice(free + 1).status()));
  {
    const auto all = DeviceBuffer<std::byte>::Create(device_, free);
    ASSERT_TRUE(all.ok());
    const absl::Status more = DeviceBuffer<int>::Create(device_, 1).status();
    EXPECT_TRUE(absl::IsResourceExhausted(more));
    EXPECT_THAT(std::string(more.message()), testing::HasSubstr("cudaErrorMemoryAllocation"));
  }
  EXPECT_EQ(*device_.FreeBytes(), free);

  device_.FailAllocation(2);
  EXPECT_TRUE(DeviceBuffer<int>::Create(device_, 1).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(PinnedBuffer<int>::Create(device_, 1).status()));
  EXPECT_TRUE(DeviceBuffer<int>::Create(device_, 1).ok());
}

TEST_F(HostDeviceTest, ALargeFillOfZerosReachesItsEnds) {
  constexpr std::size_t kBytes = (3 << 20) + 5000;
  const auto large = *DeviceBuffer<unsigned char>::Create(device_, kBytes);
  for (const unsigned char value : {9, 0}) {
    ASSERT_TRUE(device_.Fill(large.get(), value, kBytes, stream_.get()).ok());
    ASSERT_TRUE(stream_.Synchronize().ok());
    EXPECT_TRUE(std::all_of(large.data(), large.data() + kBytes,
                            [value](unsigned char each) { return each == value; }));
  }
}

TEST_F(HostDeviceTest, AnErrorOfAKernelStaysForGood) {
  device_.FailNextWork("an illegal address");
  AddOnDevice(1, stream_);
  EXPECT_TRUE(device_.LastError().ok()) << "it has not run yet";

  const absl::Status waited = stream_.Synchronize();

  EXPECT_TRUE(absl::IsInternal(waited)) << waited;
  EXPECT_THAT(std::string(waited.message()), testing::HasSubstr("an illegal address"));
  EXPECT_EQ(device_.LastError(), waited);
  EXPECT_EQ(Upload(), waited);
  EXPECT_EQ(stream_.Synchronize(), waited);
  EXPECT_EQ(device_.AllocateDevice(1).status(), waited);
  EXPECT_EQ(device_.ToStatus(0, "a kernel"), waited);
}

TEST_F(HostDeviceTest, ARefusedLaunchNamesTheKernelAndTheError) {
  const absl::Status status = device_.ToStatus(9, "rms_norm");
  EXPECT_TRUE(absl::IsInternal(status));
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::HasSubstr("rms_norm"),
                             testing::HasSubstr("cudaErrorInvalidConfiguration")));
  EXPECT_TRUE(device_.ToStatus(0, "rms_norm").ok());
}

TEST_F(HostDeviceTest, OwnersMoveAndGiveBackOnce) {
  const std::size_t before = device_.allocated_bytes();
  auto a = *DeviceBuffer<int>::Create(device_, 10);
  int* const memory = a.data();
  DeviceBuffer<int> b = std::move(a);
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(b.data(), memory);
  b = *DeviceBuffer<int>::Create(device_, 20);  // frees the first
  EXPECT_EQ(device_.allocated_bytes(), before + 20 * sizeof(int));
  b = DeviceBuffer<int>();
  EXPECT_EQ(device_.allocated_bytes(), before);
}

// The engine's and the transfer's thread at once, each with a stream of its own.
TEST_F(HostDeviceTest, TwoThreadsUseTwoStreams) {
  constexpr int kRounds = 300;
  const auto work = [this](int rounds) {
    const Stream stream = *Stream::Create(device_);
    const Event event = *Event::Create(device_);
    auto buffer = *DeviceBuffer<int>::Create(device_, 1);
    auto host = *PinnedBuffer<int>::Create(device_, 1);
    host.data()[0] = 0;
    bool right = true;
    for (int i = 0; i < rounds; ++i) {
      host.data()[0] = i;
      right =
          right && device_
                       .Copy({buffer.get(), host.get(), sizeof(int), CopyDirection::kHostToDevice},
                             stream.get())
                       .ok();
      Enqueue(stream.get(), [data = buffer.data()] { *data += 1; });
      right =
          right && device_
                       .Copy({host.get(), buffer.get(), sizeof(int), CopyDirection::kDeviceToHost},
                             stream.get())
                       .ok();
      right = right && event.Record(stream).ok();
      if (i % 2 == 0) {
        while (!*event.IsDone()) {
        }
      } else {
        right = right && stream.Synchronize().ok();
      }
      right = right && host.data()[0] == i + 1;
    }
    return right;
  };
  bool other_right = false;
  std::thread other([&] { other_right = work(kRounds); });
  EXPECT_TRUE(work(kRounds));
  other.join();
  EXPECT_TRUE(other_right);
}

}  // namespace
}  // namespace baton::emulated
