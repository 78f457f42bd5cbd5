#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"

// The tokens of one row in order of likelihood, without sorting them: one block finds the token at
// which a count or a share of the probability is reached.
//
// Order: larger logit first, among equals the lower id; both are one 64-bit number, the token's
// place, and smaller places come first. Probabilities are whole numbers of 2^-44 of the largest
// one: sums are exact, so no order of adding, no atomic and no number of threads can change a bit
// of any result. 2^20 tokens fit in 64 bits.
namespace baton::BATON_CUDA_NAMESPACE {

using Place = std::uint64_t;
using Units = std::uint64_t;

// Each with 64 bytes under way: what one multiprocessor can get from the L2 cache.
inline constexpr int kRankingThreads = 256;
inline constexpr int kRankingWarps = kRankingThreads / kWarp;
inline constexpr int kBuckets = 1024;  // a multiple of kRankingThreads
inline constexpr int kList = 512;      // tokens that are compared each with each
inline constexpr float kUnitsOfOne = 0x1p44f;
inline constexpr Place kNowhere = ~Place{0};

struct Span {
  int begin;  // a multiple of 4
  int end;
};

struct LogitRow {
  const float* logits;
  int count;
  bool aligned;  // starts at 16 bytes
};

// Four logits; -infinity from `end` on. i is a multiple of 4.
__device__ inline float4 LoadFour(const LogitRow& row, int i, int end) {
  if (row.aligned && i + 4 <= end) {
    return *reinterpret_cast<const float4*>(row.logits + i);
  }
  const float nothing = -INFINITY;
  return make_float4(i < end ? row.logits[i] : nothing, i + 1 < end ? row.logits[i + 1] : nothing,
                     i + 2 < end ? row.logits[i + 2] : nothing,
                     i + 3 < end ? row.logits[i + 3] : nothing);
}

// Calls body(id, logit) for the ids of `span` that fall to member `rank` of `size` that share it.
// Four loads are under way at a time: a row is in the L2 cache, whose latency one block has to
// hide.
template <typename Body>
__device__ inline void ForEachLogit(
    const LogitRow& row, Span span, int rank, int size, const Body& body) {
  constexpr int kLoads = 4;
  for (int first = span.begin + 4 * rank; first < span.end; first += kLoads * 4 * size) {
    float4 x[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      x[k] = LoadFour(row, first + k * 4 * size, span.end);
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const float four[4] = {x[k].x, x[k].y, x[k].z, x[k].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int id = first + k * 4 * size + j;
        if (id < span.end) {
          body(id, four[j]);
        }
      }
    }
  }
}

template <typename Body>
__device__ inline void ForEachLogit(const LogitRow& row, const Body& body) {
  ForEachLogit(row, Span{0, row.count}, static_cast<int>(threadIdx.x), kRankingThreads, body);
}

// Descending in the logit; -0 counts as 0. 0 to 0x007fffff only for NaN and +infinity.
__device__ inline Place PlaceOf(float logit, int id) {
  const std::uint32_t bits = __float_as_uint(logit + 0.0f);
  const std::uint32_t ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<Place>(~ascending) << 32 | static_cast<std::uint32_t>(id);
}

__device__ inline int TokenAt(Place place) {
  return static_cast<int>(place & 0xffffffffu);
}

// 2^x within 3e-7; exactly 1 at 0, 0 below -126. The polynomial and the roundings of the CPU's
// vector code (kernels/cpu/vector_avx2.h), so that equal logits get equal weights there.
__device__ inline float Exp2OfNonPositive(float x) {
  const float clamped = fmaxf(-126.0f, x);
  const float whole = rintf(clamped);
  const float fraction = clamped - whole;
  float p = 0.00133813021f;
  p = fmaf(p, fraction, 0.00966636837f);
  p = fmaf(p, fraction, 0.0555038117f);
  p = fmaf(p, fraction, 0.240223497f);
  p = fmaf(p, fraction, 0.693147182f);
  p = fmaf(p, fraction, 1.0f);
  const float power =
      __uint_as_float(static_cast<std::uint32_t>(static_cast<int>(whole) + 127) << 23);
  return x < -126.0f ? 0.0f : p * power;
}

// What makes probabilities of logits, and which tokens take part.
struct Softmax {
  float maximum;         // largest logit of the row
  float factor;          // log2(e) / temperature
  float least = 0;       // tokens of less than this share of the largest probability have no weight
  bool everyone = true;  // tokens without weight have a place, too

  // Binary orders of magnitude below the largest probability; at most 0.
  __device__ float Exponent(float logit) const { return (logit - maximum) * factor; }

  __device__ Units UnitsOf(float logit) const {
    const float weight = Exp2OfNonPositive(Exponent(logit));
    return weight >= least ? static_cast<Units>(llrintf(weight * kUnitsOfOne)) : 0;
  }

  // Ascending along the order. From 2^-45 on nothing has weight: the last buckets hold the rest.
  __device__ int BucketOf(float logit) const {
    return static_cast<int>(fminf(Exponent(logit) * (-(kBuckets - 2) / 45.0f), kBuckets - 1.0f));
  }
};

// Tokens and their probabilities by bucket, then of all buckets up to this one.
struct Histogram {
  std::uint32_t counts[kBuckets];
  std::uint32_t low_words[kBuckets];
  std::uint32_t high_words[kBuckets];

  __device__ Units UnitsAt(int bucket) const {
    return static_cast<Units>(high_words[bucket]) << 32 | low_words[bucket];
  }

  // Called by one thread at any time between Clear and AddUp.
  __device__ void Add(int bucket, Units units) {
    atomicAdd(&counts[bucket], 1u);
    // Shared memory adds 32 bits in one instruction, 64 in a loop. What carries is exact in any
    // order.
    const auto low = static_cast<std::uint32_t>(units);
    std::uint32_t high = static_cast<std::uint32_t>(units >> 32);
    if (low != 0) {
      high += atomicAdd(&low_words[bucket], low) > ~low ? 1 : 0;
    }
    if (high != 0) {
      atomicAdd(&high_words[bucket], high);
    }
  }

  __device__ void Clear() {
    for (int i = static_cast<int>(threadIdx.x); i < kBuckets; i += kRankingThreads) {
      counts[i] = 0;
      low_words[i] = 0;
      high_words[i] = 0;
    }
    __syncthreads();
  }

  // From now on a bucket holds the sums of all up to itself. sums: [kRankingWarps].
  __device__ void AddUp(Units* sums) {
    constexpr int kOwn = kBuckets / kRankingThreads;
    __syncthreads();  // all have added
    const int first = static_cast<int>(threadIdx.x) * kOwn;
    Units own_count = 0;
    Units own_units = 0;
    for (int i = first; i < first + kOwn; ++i) {
      own_count += counts[i];
      own_units += UnitsAt(i);
    }
    Units count = InclusiveSum<kRankingThreads>(own_count, sums) - own_count;
    Units units = InclusiveSum<kRankingThreads>(own_units, sums) - own_units;
    for (int i = first; i < first + kOwn; ++i) {
      count += counts[i];
      units += UnitsAt(i);
      counts[i] = static_cast<std::uint32_t>(count);
      low_words[i] = static_cast<std::uint32_t>(units);
      high_words[i] = static_cast<std::uint32_t>(units >> 32);
    }
    __syncthreads();
  }
};

// A token, and what it and all before it amount to.
struct Cut {
  Place place;
  Units units;
};

// Tokens that are still in question, and what comes before the first of them.
struct Neighbours {
  int bucket;
  Place first;  // places [first, last]
  Place last;
  Units count_before;
  Units units_before;
  int members;
};

// Working memory of a block, about 33 KiB.
struct RankingMemory {
  Units sums[kRankingWarps];
  Histogram coarse;  // by probability
  Histogram fine;    // by place, of the tokens of one bucket
  Place list[kList];
  Units list_units[kList];
  std::uint32_t list_size;
  Neighbours neighbours;
  Cut cut;
};

// The order of one row. All methods are called by all threads of the block.
class TokenRanking {
 public:
  __device__ TokenRanking(const LogitRow& row, const Softmax& softmax, RankingMemory& memory)
      : row_(row), softmax_(softmax), memory_(memory) {}

  // Reads the row once; the other methods need it done.
  __device__ void Build();

  __device__ Units Count() const { return memory_.coarse.counts[kBuckets - 1]; }
  __device__ Units Total() const { return memory_.coarse.UnitsAt(kBuckets - 1); }

  // The first token with which the number of tokens so far (kByCount), or else their units, reach
  // `goal`. REQUIRES: 1 <= goal <= Count() or Total().
  template <bool kByCount>
  __device__ Cut Find(Units goal);

  // Leaves the places of [first, last], which are at most kList, in memory.list in any order, and
  // their number in memory.list_size.
  __device__ void Collect(Place first, Place last) { Collect(-1, first, last); }

 private:
  // Members of a bucket (-1: of any) with a place in [first, last].
  template <typename Body>
  __device__ void ForEachMember(int bucket, Place first, Place last, const Body& body) const;
  __device__ void Collect(int bucket, Place first, Place last);
  // Sets memory.neighbours to the part of `within` that holds the goal; histogram of places, added
  // up: bucket b is the places from origin + (b << shift) on.
  template <bool kByCount>
  __device__ void Choose(
      const Histogram& histogram, Units goal, const Neighbours& within, Place origin, int shift);
  template <bool kByCount>
  __device__ void Narrow(Units goal);

  const LogitRow& row_;
  const Softmax& softmax_;
  RankingMemory& memory_;
};

template <typename Body>
__device__ inline void TokenRanking::ForEachMember(int bucket,
                                                   Place first,
                                                   Place last,
                                                   const Body& body) const {
  ForEachLogit(row_, [&](int id, float logit) {
    const Place place = PlaceOf(logit, id);
    if (place < first || place > last || (bucket >= 0 && softmax_.BucketOf(logit) != bucket)) {
      return;
    }
    const Units units = softmax_.UnitsOf(logit);
    if (softmax_.everyone || units != 0) {
      body(place, units);
    }
  });
}

__device__ inline void TokenRanking::Build() {
  memory_.coarse.Clear();
  ForEachLogit(row_, [&](int, float logit) {
    const Units units = softmax_.UnitsOf(logit);
    if (softmax_.everyone || units != 0) {
      memory_.coarse.Add(softmax_.BucketOf(logit), units);
    }
  });
  memory_.coarse.AddUp(memory_.sums);
}

__device__ inline void TokenRanking::Collect(int bucket, Place first, Place last) {
  __syncthreads();  // nobody reads the list before any more
  if (threadIdx.x == 0) {
    memory_.list_size = 0;
  }
  __syncthreads();
  ForEachMember(bucket, first, last, [&](Place place, Units units) {
    const std::uint32_t slot = atomicAdd(&memory_.list_size, 1u);
    memory_.list[slot] = place;
    memory_.list_units[slot] = units;
  });
  __syncthreads();
}

template <bool kByCount>
__device__ inline void TokenRanking::Choose(
    const Histogram& histogram, Units goal, const Neighbours& within, Place origin, int shift) {
  for (int b = static_cast<int>(threadIdx.x); b < kBuckets; b += kRankingThreads) {
    const Units count = within.count_before + (b == 0 ? 0 : histogram.counts[b - 1]);
    const Units units = within.units_before + (b == 0 ? 0 : histogram.UnitsAt(b - 1));
    const Units next_count = within.count_before + histogram.counts[b];
    const Units next_units = within.units_before + histogram.UnitsAt(b);
    // True of one bucket: sums never fall, and the goal is not beyond the last.
    if (kByCount ? count < goal && goal <= next_count : units < goal && goal <= next_units) {
      const bool coarse = within.bucket < 0;
      const Place first = coarse ? 0 : origin + (static_cast<Place>(b) << shift);
      memory_.neighbours = {.bucket = coarse ? b : within.bucket,
                            .first = first,
                            .last = coarse ? kNowhere : first + ((Place{1} << shift) - 1),
                            .count_before = count,
                            .units_before = units,
                            .members = static_cast<int>(next_count - count)};
    }
  }
  __syncthreads();
}

// One level: cuts what the neighbours span into equal parts and keeps the one that holds the goal.
template <bool kByCount>
__device__ inline void TokenRanking::Narrow(Units goal) {
  const Neighbours within = memory_.neighbours;
  Place first = kNowhere;
  Place last = 0;
  ForEachMember(within.bucket, within.first, within.last, [&](Place place, Units) {
    first = place < first ? place : first;
    last = place > last ? place : last;
  });
  first = ReduceBlock<kRankingThreads>(first, memory_.sums,
                                       [](Place a, Place b) { return a < b ? a : b; });
  last = ReduceBlock<kRankingThreads>(last, memory_.sums,
                                      [](Place a, Place b) { return a > b ? a : b; });
  int shift = 0;
  while ((last - first) >> shift >= kBuckets) {
    ++shift;
  }
  memory_.fine.Clear();
  ForEachMember(within.bucket, first, last, [&](Place place, Units units) {
    memory_.fine.Add(static_cast<int>((place - first) >> shift), units);
  });
  memory_.fine.AddUp(memory_.sums);
  Choose<kByCount>(memory_.fine, goal, within, first, shift);
}

template <bool kByCount>
__device__ inline Cut TokenRanking::Find(Units goal) {
  Choose<kByCount>(memory_.coarse, goal, {.bucket = -1}, 0, 0);
  while (memory_.neighbours.members > kList) {
    Narrow<kByCount>(goal);
  }
  const Neighbours within = memory_.neighbours;
  Collect(within.bucket, within.first, within.last);
  // Every token of the list adds up what comes before it; one of them holds the goal.
  const int size = static_cast<int>(memory_.list_size);
  for (int t = static_cast<int>(threadIdx.x); t < size; t += kRankingThreads) {
    const Place own = memory_.list[t];
    Units count = within.count_before;
    Units units = within.units_before;
    for (int i = 0; i < size; ++i) {
      const bool before = memory_.list[i] < own;
      count += before ? 1 : 0;
      units += before ? memory_.list_units[i] : 0;
    }
    const Units own_units = memory_.list_units[t];
    if (kByCount ? count + 1 == goal : units < goal && goal <= units + own_units) {
      memory_.cut = {.place = own, .units = units + own_units};
    }
  }
  __syncthreads();
  return memory_.cut;
}

}  // namespace baton::BATON_CUDA_NAMESPACE
