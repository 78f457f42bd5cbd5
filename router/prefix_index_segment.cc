#include "router/prefix_index_segment.h"

#include <sys/mman.h>

#include <cstdlib>

#include "common/check.h"

namespace baton {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
constexpr std::size_t kFirstSegments = 128;  // 8 MiB, beside which a huge page is little

}  // namespace

void PrefixSegments::FreeMemory::operator()(void* memory) const {
  std::free(memory);
}

PrefixSegments::~PrefixSegments() {
  absl::MutexLock lock(&mutex_);
  for (PrefixSegment* segment : segments_) {
    std::destroy_at(segment);
  }
}

PrefixSegment* PrefixSegments::New() {
  absl::MutexLock lock(&mutex_);
  if (vacant_ == 0) {
    const bool huge = segments_.size() >= kFirstSegments;
    const std::size_t bytes = huge ? kHugePageBytes : sizeof(PrefixSegment);
    if (!room_.Take(bytes)) {
      return nullptr;
    }
    slabs_.emplace_back(std::aligned_alloc(huge ? bytes : alignof(PrefixSegment), bytes));
    BATON_CHECK(slabs_.back() != nullptr);
    if (huge) {
      madvise(slabs_.back().get(), bytes, MADV_HUGEPAGE);  // best effort
    }
    vacant_ = bytes / sizeof(PrefixSegment);
  }
  const std::size_t in_slab =
      slabs_.size() > kFirstSegments ? kHugePageBytes / sizeof(PrefixSegment) : 1;
  auto* place = static_cast<PrefixSegment*>(slabs_.back().get()) + (in_slab - vacant_);
  --vacant_;
  segments_.push_back(std::construct_at(place));
  return segments_.back();
}

}  // namespace baton
