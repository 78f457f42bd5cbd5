#include "worker/device_staging_copier.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/status_macros.h"
#include "kernels/cuda/handles.h"
#include "kvtransfer/staged/staged_transport.h"

namespace baton {
namespace {

using cuda::BlockCopyParams;

// Pieces of one launch; messages have no more.
constexpr std::size_t kMostPieces = 512;
// What the kernels move at a time.
constexpr std::size_t kVectorBytes = 16;

bool IsAligned(const std::byte* address) {
  return reinterpret_cast<std::uintptr_t>(address) % kVectorBytes == 0;
}

// Not thread-safe: used only by the transfer thread.
class DeviceStagingCopier final : public StagingCopier {
 public:
  static absl::StatusOr<std::unique_ptr<StagingCopier>> Create(cuda::Device& device) {
    auto copier = std::make_unique<DeviceStagingCopier>(device);
    ASSIGN_OR_RETURN(copier->stream_, cuda::Stream::Create(device));
    return copier;
  }

  explicit DeviceStagingCopier(cuda::Device& device) : device_(device) {}

  absl::StatusOr<std::span<std::byte>> AllocatePinned(std::size_t bytes) override {
    ASSIGN_OR_RETURN(auto memory, cuda::PinnedBuffer<std::byte>::Create(device_, bytes));
    pinned_.push_back(std::move(memory));
    return pinned_.back().span();
  }

  absl::StatusOr<CopyId> StartToHost(ConstParts device, std::byte* host) override {
    std::vector<std::span<std::byte>> parts;
    parts.reserve(device.size());
    for (const std::span<const std::byte> part : device) {
      // Only read, by a kernel that takes the same parameters for both directions.
      parts.emplace_back(const_cast<std::byte*>(part.data()), part.size());
    }
    return Start(parts, host, CopyDirection::kDeviceToHost);
  }

  absl::StatusOr<CopyId> StartToDevice(const std::byte* host, MutableParts device) override {
    return Start(device, const_cast<std::byte*>(host), CopyDirection::kHostToDevice);
  }

  std::optional<absl::Status> Poll(CopyId copy) override {
    const auto found = under_way_.find(copy);
    absl::StatusOr<bool> done = found->second.event.IsDone();
    if (done.ok() && !*done) {
      return std::nullopt;
    }
    idle_.push_back(std::move(found->second));
    under_way_.erase(found);
    return done.status();
  }

 private:
  // What one copy under way needs, used again by later ones.
  struct Slot {
    cuda::Event event;
    cuda::PinnedBuffer<std::byte*> pieces;  // kernels read it while they run
  };

  absl::StatusOr<CopyId> Start(MutableParts parts, std::byte* host, CopyDirection direction) {
    ASSIGN_OR_RETURN(Slot slot, TakeSlot());
    const absl::Status put = IsUniform(parts, host)
                                 ? Launch(parts, host, direction, slot.pieces.data())
                                 : CopyEach(parts, host, direction);
    // Also after an error: what was put on the stream before it may still run, and the event of the
    // next copy stands for it too.
    const absl::Status recorded = slot.event.Record(stream_);
    if (!put.ok() || !recorded.ok()) {
      const absl::Status waited = stream_.Synchronize();
      idle_.push_back(std::move(slot));
      return !put.ok() ? put : !recorded.ok() ? recorded : waited;
    }
    const CopyId id(next_++);
    under_way_[id] = std::move(slot);
    return id;
  }

  absl::StatusOr<Slot> TakeSlot() {
    if (!idle_.empty()) {
      Slot slot = std::move(idle_.back());
      idle_.pop_back();
      return slot;
    }
    Slot slot;
    ASSIGN_OR_RETURN(slot.event, cuda::Event::Create(device_));
    ASSIGN_OR_RETURN(slot.pieces, cuda::PinnedBuffer<std::byte*>::Create(device_, kMostPieces));
    return slot;
  }

  static bool IsUniform(MutableParts parts, const std::byte* host) {
    return parts.size() > 1 && parts.size() <= kMostPieces && IsAligned(host) &&
           parts.front().size() % kVectorBytes == 0 &&
           std::all_of(parts.begin(), parts.end(), [&](std::span<std::byte> part) {
             return part.size() == parts.front().size() && IsAligned(part.data());
           });
  }

  absl::Status Launch(MutableParts parts,
                      std::byte* host,
                      CopyDirection direction,
                      std::byte** pieces) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      pieces[i] = parts[i].data();
    }
    const BlockCopyParams params{.pieces = pieces,
                                 .staging = host,
                                 .piece_bytes = static_cast<std::int64_t>(parts.front().size()),
                                 .count = static_cast<int>(parts.size())};
    return direction == CopyDirection::kDeviceToHost
               ? device_.ToStatus(device_.kernels().gather_blocks(params, stream_.get()),
                                  "gather_blocks")
               : device_.ToStatus(device_.kernels().scatter_blocks(params, stream_.get()),
                                  "scatter_blocks");
  }

  absl::Status CopyEach(MutableParts parts, std::byte* host, CopyDirection direction) {
    for (const std::span<std::byte> part : parts) {
      const bool to_host = direction == CopyDirection::kDeviceToHost;
      RETURN_IF_ERROR(device_.Copy({.destination = to_host ? host : part.data(),
                                    .source = to_host ? part.data() : host,
                                    .bytes = part.size(),
                                    .direction = direction},
                                   stream_.get()));
      host += part.size();
    }
    return absl::OkStatus();
  }

  cuda::Device& device_;
  std::vector<cuda::PinnedBuffer<std::byte>> pinned_;
  std::vector<Slot> idle_;
  absl::flat_hash_map<CopyId, Slot> under_way_;
  std::uint64_t next_ = 1;
  cuda::Stream stream_;  // last: its destruction waits for the copies
};

}  // namespace

StagingCopierFactory MakeDeviceStagingCopier(cuda::Device& device) {
  return [&device] { return DeviceStagingCopier::Create(device); };
}

TransportFactory StageFor(cuda::Device* device, TransportFactory plain) {
  return device == nullptr
             ? plain
             : staged::MakeTransport(std::move(plain), MakeDeviceStagingCopier(*device));
}

}  // namespace baton
