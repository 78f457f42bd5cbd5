#include "bench/memcpy_row.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/machine_limits.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace baton {
namespace {

class MemcpyReceiver final : public TransferReceiver {
 public:
  // `view`: where the source is read; not owned unless it is another place than the pool's own.
  MemcpyReceiver(std::unique_ptr<TransferPool> source,
                 std::unique_ptr<TransferPool> destination,
                 const std::byte* view)
      : source_(std::move(source)), destination_(std::move(destination)), view_(view) {}
  ~MemcpyReceiver() override {
    if (view_ != source_->region().base) {
      munmap(const_cast<std::byte*>(view_), source_->size_bytes());
    }
  }

  absl::StatusOr<TransferSample> Transfer(Piece piece, int round) override {
    const std::vector<BlockId> from = source_->Scatter(round, TransferPool::Side::kSource);
    const std::vector<BlockId> to = destination_->Scatter(round, TransferPool::Side::kDestination);
    source_->Fill(from, round);
    const std::vector<std::span<std::byte>> sources = source_->Pieces(from, piece);
    const std::vector<std::span<std::byte>> destinations = destination_->Pieces(to, piece);
    const std::byte* const base = source_->region().base;

    const double cpu = ProcessCpuSeconds();
    const TimePoint start = Clock::System().Now();
    for (std::size_t i = 0; i < sources.size(); ++i) {
      std::memcpy(destinations[i].data(), view_ + (sources[i].data() - base), sources[i].size());
    }
    const Duration took = Clock::System().Now() - start;
    const double used = ProcessCpuSeconds() - cpu;
    const bool verified = destination_->Holds(to, round);
    return TransferSample{.seconds = std::chrono::duration<double>(took).count(),
                          .receiver_cpu_seconds = used,
                          .piece_bytes = static_cast<double>(sources.front().size()),
                          .verified = verified,
                          .carrier = "memcpy"};
  }

 private:
  const std::unique_ptr<TransferPool> source_;
  const std::unique_ptr<TransferPool> destination_;
  const std::byte* const view_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TransferReceiver>> MakeMemcpyReceiver(const TransferShape& shape,
                                                                     PoolMemory source) {
  ASSIGN_OR_RETURN(std::unique_ptr<TransferPool> from, TransferPool::Create(shape, source));
  ASSIGN_OR_RETURN(std::unique_ptr<TransferPool> to,
                   TransferPool::Create(shape, PoolMemory::kHugePages));
  const std::byte* view = from->region().base;
  if (source == PoolMemory::kSharedFile) {
    void* mapped =
        mmap(nullptr, from->size_bytes(), PROT_READ, MAP_SHARED | MAP_POPULATE, from->fd(), 0);
    if (mapped == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("map the source pool: ", std::strerror(errno)));
    }
    view = static_cast<const std::byte*>(mapped);
  }
  return std::make_unique<MemcpyReceiver>(std::move(from), std::move(to), view);
}

}  // namespace baton
