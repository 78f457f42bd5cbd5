#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "kernels/cuda/device.h"

// Owners of what a Device makes. Move-only; each gives its thing back when it goes. The device must
// outlive them. Thread rule: that of Device.
namespace baton::cuda {

// What all owners have in common: a device and a handle of it, or neither. `Free` gives one back.
template <typename Handle, auto Free>
class DeviceOwned {
 public:
  DeviceOwned() = default;
  DeviceOwned(Device& device, Handle handle) : device_(&device), handle_(handle) {}
  ~DeviceOwned() { Reset(); }
  DeviceOwned(DeviceOwned&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)),
        handle_(std::exchange(other.handle_, nullptr)) {}
  DeviceOwned& operator=(DeviceOwned&& other) noexcept {
    if (this != &other) {
      Reset();
      device_ = std::exchange(other.device_, nullptr);
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }

  explicit operator bool() const { return handle_ != nullptr; }
  Handle get() const { return handle_; }

 protected:
  Device& device() const { return *device_; }

 private:
  void Reset() {
    if (handle_ != nullptr) {
      (device_->*Free)(handle_);
      handle_ = nullptr;
    }
  }

  Device* device_ = nullptr;  // not owned
  Handle handle_ = nullptr;
};

class Stream : public DeviceOwned<StreamHandle, &Device::DestroyStream> {
 public:
  using DeviceOwned::DeviceOwned;
  static absl::StatusOr<Stream> Create(Device& device) {
    ASSIGN_OR_RETURN(const StreamHandle handle, device.CreateStream());
    return Stream(device, handle);
  }
  absl::Status Synchronize() const { return device().Synchronize(get()); }
};

class Event : public DeviceOwned<EventHandle, &Device::DestroyEvent> {
 public:
  using DeviceOwned::DeviceOwned;
  static absl::StatusOr<Event> Create(Device& device) {
    ASSIGN_OR_RETURN(const EventHandle handle, device.CreateEvent());
    return Event(device, handle);
  }
  absl::Status Record(const Stream& stream) const { return device().Record(get(), stream.get()); }
  absl::StatusOr<bool> IsDone() const { return device().IsDone(get()); }
  absl::Status Synchronize() const { return device().Synchronize(get()); }
};

// A captured piece of a stream that can be put on a stream again and again.
class GraphExec : public DeviceOwned<GraphHandle, &Device::DestroyGraph> {
 public:
  using DeviceOwned::DeviceOwned;
  // Notes what `put_on_stream` puts on `stream`. A failed capture leaves the stream as it was.
  template <typename PutOnStream>
  static absl::StatusOr<GraphExec> Capture(Device& device,
                                           const Stream& stream,
                                           const PutOnStream& put_on_stream) {
    RETURN_IF_ERROR(device.BeginCapture(stream.get()));
    const absl::Status put = put_on_stream();
    absl::StatusOr<GraphHandle> graph = device.EndCapture(stream.get());
    GraphExec owned = graph.ok() ? GraphExec(device, *graph) : GraphExec();
    RETURN_IF_ERROR(put);
    RETURN_IF_ERROR(graph.status());
    return owned;
  }
  absl::Status Launch(const Stream& stream) const {
    return device().LaunchGraph(get(), stream.get());
  }
};

// `count` elements of device memory, which the host must not touch.
template <typename T>
class DeviceBuffer : public DeviceOwned<std::byte*, &Device::FreeDevice> {
 public:
  DeviceBuffer() = default;
  static absl::StatusOr<DeviceBuffer> Create(Device& device, std::size_t count) {
    ASSIGN_OR_RETURN(std::byte* const memory, device.AllocateDevice(count * sizeof(T)));
    return DeviceBuffer(device, memory, count);
  }

  T* data() const { return reinterpret_cast<T*>(get()); }
  std::size_t size() const { return count_; }
  std::size_t size_bytes() const { return count_ * sizeof(T); }

 private:
  DeviceBuffer(Device& device, std::byte* memory, std::size_t count)
      : DeviceOwned(device, memory), count_(count) {}

  std::size_t count_ = 0;
};

// `count` elements of pinned host memory, with any content.
template <typename T>
class PinnedBuffer : public DeviceOwned<std::byte*, &Device::FreePinned> {
 public:
  PinnedBuffer() = default;
  static absl::StatusOr<PinnedBuffer> Create(Device& device, std::size_t count) {
    ASSIGN_OR_RETURN(std::byte* const memory, device.AllocatePinned(count * sizeof(T)));
    return PinnedBuffer(device, memory, count);
  }

  T* data() const { return reinterpret_cast<T*>(get()); }
  std::size_t size() const { return count_; }
  std::size_t size_bytes() const { return count_ * sizeof(T); }
  std::span<T> span() const { return {data(), count_}; }

 private:
  PinnedBuffer(Device& device, std::byte* memory, std::size_t count)
      : DeviceOwned(device, memory), count_(count) {}

  std::size_t count_ = 0;
};

}  // namespace baton::cuda
