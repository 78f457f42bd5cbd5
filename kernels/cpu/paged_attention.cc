#include "kernels/cpu/paged_attention.h"

#include <algorithm>
#include <cstring>

namespace baton {
namespace {

std::size_t RoundUpToLine(std::size_t floats) {
  return (floats + 15) / 16 * 16;
}

bool SameSegments(const PagedAttentionArgs& args, std::size_t a, std::size_t b) {
  const auto entries = [&](std::size_t row) {
    return args.entry_segment.subspan(
        static_cast<std::size_t>(args.row_segments[row]),
        static_cast<std::size_t>(args.row_segments[row + 1] - args.row_segments[row]));
  };
  return std::ranges::equal(entries(a), entries(b));
}

const std::byte* HeadAddress(const KvPoolView& pool, LayerIndex layer, int head) {
  return pool.data + layer.value() * pool.layer_bytes +
         static_cast<std::size_t>(head) * HeadBytes(pool.head_dim);
}

std::size_t BlockStride(const KvPoolView& pool) {
  return static_cast<std::size_t>(pool.layers) * pool.layer_bytes;
}

}  // namespace

void WriteKv(const RotateAndWriteKvArgs& args,
             const CpuRopeTable& rope,
             const KernelTable& kernels,
             ThreadPool& pool) {
  // Tokens [first, first + count) that go into neighbouring slots of one block.
  struct Run {
    int first;
    int count;
  };
  std::vector<Run> runs;
  for (int t = 0; t < args.key.rows(); ++t) {
    const auto row = static_cast<std::size_t>(t);
    if (args.block[row] == kIdleBlock) {
      continue;
    }
    if (!runs.empty() && runs.back().first + runs.back().count == t &&
        args.block[row] == args.block[row - 1] && args.offset[row] == args.offset[row - 1] + 1) {
      ++runs.back().count;
    } else {
      runs.push_back({.first = t, .count = 1});
    }
  }
  const int heads = args.pool.kv_heads;
  const int head_dim = args.pool.head_dim;
  pool.ParallelFor(static_cast<int>(runs.size()), [&](int index, int) {
    const auto [first, count] = runs[static_cast<std::size_t>(index)];
    const auto row = static_cast<std::size_t>(first);
    for (int head = 0; head < heads; ++head) {
      std::byte* const block =
          args.pool.data + args.block[row].value() * BlockStride(args.pool) +
          static_cast<std::size_t>(HeadAddress(args.pool, args.layer, head) - args.pool.data);
      kernels.write_kv_run(
          {.key = &args.key(first, head, 0),
           .value = &args.value(first, head, 0),
           .key_stride = args.key.row_stride(),
           .value_stride = args.value.row_stride(),
           .rotation = args.rotation.data() + row,
           .cosines = rope.cosines(0),
           .sines = rope.sines(0),
           .tokens = count,
           .head_dim = head_dim,
           .slot = args.offset[row],
           .keys = reinterpret_cast<std::uint32_t*>(block),
           .values = reinterpret_cast<std::uint32_t*>(block + KeyBytes(head_dim))});
    }
  });
}

void CpuPagedAttention::CutTiles(const PagedAttentionArgs& args, int most_rows) {
  tiles_.clear();
  for (int t = 0; t < args.query.rows(); ++t) {
    if (!tiles_.empty() && tiles_.back().count < most_rows &&
        SameSegments(args, static_cast<std::size_t>(t) - 1, static_cast<std::size_t>(t))) {
      ++tiles_.back().count;
    } else {
      tiles_.push_back({.first = t, .count = 1});
    }
  }
  // Later rows of a prompt see more keys: starting with them leaves the small tiles to fill the
  // gaps between threads.
  std::ranges::reverse(tiles_);
}

absl::Status CpuPagedAttention::Run(const PagedAttentionArgs& args, const CpuRopeTable& rope) {
  const int group = args.query.extent(1) / args.pool.kv_heads;
  const int most_rows = std::max(1, kernels_.attention_rows / group);
  CutTiles(args, most_rows);
  entry_blocks_.clear();
  for (const int segment : args.entry_segment) {
    entry_blocks_.push_back(args.segments[static_cast<std::size_t>(segment)].blocks.data());
  }
  const std::size_t thread_floats = RoundUpToLine(
      std::max(kernels_.attention_scratch_floats(most_rows * group, 1, args.pool.head_dim),
               kernels_.attention_scratch_floats(group, args.pool.kv_heads, args.pool.head_dim)));
  const std::size_t floats = thread_floats * static_cast<std::size_t>(pool_.threads());
  if (floats > scratch_floats_) {
    scratch_ = MakeAlignedArray<float>(floats);
    scratch_floats_ = scratch_ == nullptr ? 0 : floats;
    if (scratch_ == nullptr) {
      return absl::ResourceExhaustedError("paged_attention: no scratch memory");
    }
  }
  CutShares(args.pool.kv_heads);
  pool_.ParallelFor(static_cast<int>(shares_.size()), [&](int index, int thread) {
    RunShare(args, rope, index, scratch_.get() + static_cast<std::size_t>(thread) * thread_floats);
  });
  return absl::OkStatus();
}

void CpuPagedAttention::CutShares(int kv_heads) {
  constexpr std::size_t kSharesOfThread = 4;  // so that none waits long for another at the end
  const auto threads = static_cast<std::size_t>(pool_.threads());
  const bool enough = threads == 1 || tiles_.size() >= kSharesOfThread * threads;
  shares_.clear();
  for (const RowTile& rows : tiles_) {
    const int heads = rows.count == 1 && enough ? kv_heads : 1;
    for (int head = 0; head < kv_heads; head += heads) {
      shares_.push_back({.rows = rows, .head = head, .heads = heads});
    }
  }
}

// What follows a share on its thread, as far as that is known.
AttentionAhead CpuPagedAttention::AheadOf(const PagedAttentionArgs& args, int index) const {
  const auto next = static_cast<std::size_t>(index) + 1;
  if (pool_.threads() > 1 || next == shares_.size()) {
    return {};
  }
  const auto& [rows, head, heads] = shares_[next];
  const int entry = args.row_segments[static_cast<std::size_t>(rows.first)];
  if (entry == args.row_segments[static_cast<std::size_t>(rows.first) + 1]) {
    return {};
  }
  return {.blocks = entry_blocks_[static_cast<std::size_t>(entry)],
          .tokens = args.visible_tokens[static_cast<std::size_t>(entry)],
          .heads = heads,
          .pool = HeadAddress(args.pool, args.layer, head)};
}

void CpuPagedAttention::RunShare(const PagedAttentionArgs& args,
                                 const CpuRopeTable& rope,
                                 int index,
                                 float* scratch) {
  const auto& [rows, head, heads] = shares_[static_cast<std::size_t>(index)];
  const int group = args.query.extent(1) / args.pool.kv_heads;
  const int first_entry = args.row_segments[static_cast<std::size_t>(rows.first)];
  const int entries = args.row_segments[static_cast<std::size_t>(rows.first) + 1] - first_entry;
  if (entries == 0) {  // idle rows
    for (int t = rows.first; t < rows.first + rows.count; ++t) {
      std::fill_n(&args.output(t, head * group, 0), heads * group * args.pool.head_dim, BFloat16{});
    }
    return;
  }
  kernels_.attention_tile({.query = &args.query(rows.first, head * group, 0),
                           .query_stride = args.query.row_stride(),
                           .output = &args.output(rows.first, head * group, 0).bits,
                           .output_stride = args.output.row_stride(),
                           .queries = rows.count,
                           .heads = heads,
                           .group = group,
                           .head_dim = args.pool.head_dim,
                           .entries = entries,
                           .blocks = entry_blocks_.data() + first_entry,
                           .delta = args.delta.data() + first_entry,
                           .visible_tokens = args.visible_tokens.data() + first_entry,
                           .pool = HeadAddress(args.pool, args.layer, head),
                           .block_stride_bytes = BlockStride(args.pool),
                           .ahead = AheadOf(args, index),
                           .cosines = rope.cosines(0),
                           .sines = rope.sines(0),
                           .scale = args.scale,
                           .scratch = scratch});
}

}  // namespace baton
