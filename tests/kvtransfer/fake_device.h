#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/check.h"
#include "kvtransfer/staged/staging_copier.h"

namespace baton {

// Addresses that stand for `bytes` on a device: whoever touches them dies, and only a FakeCopier
// knows what is behind. `bytes` outlive it. Thread-safe.
class FakeDeviceMemory {
 public:
  explicit FakeDeviceMemory(std::span<std::byte> bytes) : bytes_(bytes) {
    void* mapped =
        mmap(nullptr, bytes.size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    BATON_CHECK(mapped != MAP_FAILED);
    address_ = static_cast<std::byte*>(mapped);
    absl::MutexLock lock(&All().mutex);
    All().memories[address_] = this;
  }
  ~FakeDeviceMemory() {
    {
      absl::MutexLock lock(&All().mutex);
      All().memories.erase(address_);
    }
    munmap(address_, bytes_.size());
  }
  FakeDeviceMemory(const FakeDeviceMemory&) = delete;
  FakeDeviceMemory& operator=(const FakeDeviceMemory&) = delete;

  std::byte* address() const { return address_; }

  // What is behind a range of device addresses. REQUIRES: there is such memory.
  static std::span<std::byte> Behind(const std::byte* address, std::size_t size) {
    absl::MutexLock lock(&All().mutex);
    auto memory = All().memories.upper_bound(address);
    BATON_CHECK(memory != All().memories.begin());
    --memory;
    const auto offset = static_cast<std::size_t>(address - memory->first);
    BATON_CHECK(offset + size <= memory->second->bytes_.size());
    return memory->second->bytes_.subspan(offset, size);
  }

 private:
  struct Registry {
    absl::Mutex mutex;
    std::map<const std::byte*, FakeDeviceMemory*> memories ABSL_GUARDED_BY(mutex);
  };
  static Registry& All() {
    static Registry registry;
    return registry;
  }

  std::span<std::byte> bytes_;
  std::byte* address_ = nullptr;
};

// What a test does to the copies of a FakeCopier, and sees of them. Thread-safe.
struct FakeCopies {
  std::atomic<bool> hold = false;      // copies do not end
  std::atomic<int> fail_to_start = 0;  // so many of the next ones
  std::atomic<int> fail = 0;           // so many of the next ones end with an error
  std::atomic<int> to_host = 0;        // started
  std::atomic<int> to_device = 0;      // started
  std::atomic<int> under_way = 0;
  std::atomic<int> most_under_way = 0;
  // Two copies into or out of the same slot at a time, or one outside of the slots.
  std::atomic<int> misplaced = 0;
};

// Copies late, as a device does: what a copy will write is poisoned when it starts and filled when
// it ends, some rounds of Poll later, not in the order in which the copies started.
class FakeCopier final : public StagingCopier {
 public:
  explicit FakeCopier(std::shared_ptr<FakeCopies> copies) : copies_(std::move(copies)) {}
  ~FakeCopier() override {
    while (!jobs_.empty()) {
      End(jobs_.begin()->first, /*fail=*/false);
    }
  }

  absl::StatusOr<std::span<std::byte>> AllocatePinned(std::size_t bytes) override {
    pinned_.emplace_back(bytes, kPoison);
    return std::span(pinned_.back());
  }
  absl::StatusOr<CopyId> StartToHost(ConstParts device, std::byte* host) override {
    Job job{.host = host};
    for (const std::span<const std::byte> part : device) {
      job.device.push_back(FakeDeviceMemory::Behind(part.data(), part.size()));
      job.bytes += part.size();
    }
    ++copies_->to_host;
    return Start(std::move(job));
  }
  absl::StatusOr<CopyId> StartToDevice(const std::byte* host, MutableParts device) override {
    Job job{.host = const_cast<std::byte*>(host), .to_device = true};
    for (const std::span<std::byte> part : device) {
      job.device.push_back(FakeDeviceMemory::Behind(part.data(), part.size()));
      job.bytes += part.size();
    }
    ++copies_->to_device;
    return Start(std::move(job));
  }
  std::optional<absl::Status> Poll(CopyId copy) override {
    Job& job = jobs_.at(copy);
    if (copies_->hold || --job.rounds > 0) {
      return std::nullopt;
    }
    const bool fail = TakeOne(copies_->fail);
    End(copy, fail);
    return fail ? absl::InternalError("the device is lost") : absl::OkStatus();
  }

 private:
  static constexpr std::byte kPoison{0xdb};
  struct Job {
    std::byte* host = nullptr;
    bool to_device = false;
    std::vector<std::span<std::byte>> device;  // behind the addresses
    std::size_t bytes = 0;
    int rounds = 0;
  };

  static bool TakeOne(std::atomic<int>& left) {
    int now = left;
    while (now > 0 && !left.compare_exchange_weak(now, now - 1)) {
    }
    return now > 0;
  }

  absl::StatusOr<CopyId> Start(Job job) {
    if (TakeOne(copies_->fail_to_start)) {
      return absl::InternalError("the device takes no copies");
    }
    CheckPlace(job);
    if (job.to_device) {
      for (const std::span<std::byte> part : job.device) {
        std::fill(part.begin(), part.end(), kPoison);
      }
    } else {
      std::fill_n(job.host, job.bytes, kPoison);
    }
    const CopyId id(next_++);
    job.rounds = 1 + static_cast<int>(id.value() * 7 % 5);
    jobs_[id] = std::move(job);
    copies_->most_under_way = std::max(copies_->most_under_way.load(), ++copies_->under_way);
    return id;
  }

  void CheckPlace(const Job& job) {
    const bool inside =
        std::any_of(pinned_.begin(), pinned_.end(), [&](const std::vector<std::byte>& memory) {
          return job.host >= memory.data() && job.host + job.bytes <= memory.data() + memory.size();
        });
    const bool alone = std::none_of(jobs_.begin(), jobs_.end(), [&](const auto& other) {
      return job.host < other.second.host + other.second.bytes &&
             other.second.host < job.host + job.bytes;
    });
    copies_->misplaced += inside && alone ? 0 : 1;
  }

  void End(CopyId id, bool fail) {
    const Job& job = jobs_.at(id);
    std::byte* host = job.host;
    for (const std::span<std::byte> part : job.device) {
      if (!fail && job.to_device) {
        std::copy_n(host, part.size(), part.begin());
      } else if (!fail) {
        std::copy(part.begin(), part.end(), host);
      }
      host += part.size();
    }
    jobs_.erase(id);
    --copies_->under_way;
  }

  const std::shared_ptr<FakeCopies> copies_;  // shared with the test
  std::vector<std::vector<std::byte>> pinned_;
  std::map<CopyId, Job> jobs_;
  std::uint64_t next_ = 1;
};

inline StagingCopierFactory MakeFakeCopier(
    std::shared_ptr<FakeCopies> copies = std::make_shared<FakeCopies>()) {
  return [copies = std::move(copies)]() -> absl::StatusOr<std::unique_ptr<StagingCopier>> {
    return std::make_unique<FakeCopier>(copies);
  };
}

}  // namespace baton
