#include "tests/gpu/gpu_ceilings.h"

#include <algorithm>
#include <limits>

#include "absl/functional/function_ref.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "kernels/cuda/handles.h"

namespace baton {
namespace {

// Of several calls in one go, so that starting them does not count.
constexpr int kCalls = 8;

// Seconds for one call, of the quickest round.
absl::StatusOr<double> Time(const cuda::Stream& stream,
                            int rounds,
                            absl::FunctionRef<absl::Status()> call) {
  double best = std::numeric_limits<double>::infinity();
  RETURN_IF_ERROR(call());  // warm
  RETURN_IF_ERROR(stream.Synchronize());
  for (int round = 0; round < rounds; ++round) {
    const TimePoint begin = Clock::System().Now();
    for (int i = 0; i < kCalls; ++i) {
      RETURN_IF_ERROR(call());
    }
    RETURN_IF_ERROR(stream.Synchronize());
    const std::chrono::duration<double> took = Clock::System().Now() - begin;
    best = std::min(best, took.count() / kCalls);
  }
  return best;
}

absl::StatusOr<double> CopyBytesPerSecond(cuda::Device& device,
                                          const cuda::Stream& stream,
                                          const CeilingSizes& sizes) {
  ASSIGN_OR_RETURN(const auto from,
                   cuda::DeviceBuffer<std::byte>::Create(device, sizes.copy_bytes));
  ASSIGN_OR_RETURN(const auto to, cuda::DeviceBuffer<std::byte>::Create(device, sizes.copy_bytes));
  RETURN_IF_ERROR(device.Fill(from.data(), 0x5a, sizes.copy_bytes, stream.get()));
  ASSIGN_OR_RETURN(const double seconds, Time(stream, sizes.rounds, [&] {
                     return device.Copy({.destination = to.data(),
                                         .source = from.data(),
                                         .bytes = sizes.copy_bytes,
                                         .direction = CopyDirection::kDeviceToDevice},
                                        stream.get());
                   }));
  return 2.0 * static_cast<double>(sizes.copy_bytes) / seconds;
}

// Random bf16 between 1 and 2 with a random sign: multiplying zeros takes less power, and so less
// time.
absl::Status FillRandom(cuda::Device& device,
                        const cuda::Stream& stream,
                        const cuda::DeviceBuffer<std::uint16_t>& target) {
  ASSIGN_OR_RETURN(const auto host,
                   cuda::PinnedBuffer<std::uint16_t>::Create(device, target.size()));
  std::uint64_t state = 0x9e3779b97f4a7c15u;
  for (std::uint16_t& value : host.span()) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    value = static_cast<std::uint16_t>((state & 0x807f) | 0x3f80);
  }
  RETURN_IF_ERROR(device.Copy({.destination = target.get(),
                               .source = host.get(),
                               .bytes = target.size_bytes(),
                               .direction = CopyDirection::kHostToDevice},
                              stream.get()));
  return stream.Synchronize();
}

absl::StatusOr<double> GemmFlopsPerSecond(cuda::Device& device,
                                          const cuda::Stream& stream,
                                          const CeilingSizes& sizes) {
  const auto side = static_cast<std::size_t>(sizes.gemm_side);
  ASSIGN_OR_RETURN(const auto gemm, device.CreateGemm());
  ASSIGN_OR_RETURN(const auto input,
                   cuda::DeviceBuffer<std::uint16_t>::Create(device, side * side));
  ASSIGN_OR_RETURN(const auto weight,
                   cuda::DeviceBuffer<std::uint16_t>::Create(device, side * side));
  ASSIGN_OR_RETURN(const auto output, cuda::DeviceBuffer<float>::Create(device, side * side));
  RETURN_IF_ERROR(FillRandom(device, stream, input));
  RETURN_IF_ERROR(FillRandom(device, stream, weight));
  const cuda::GemmParams params{.input = input.data(),
                                .input_stride = sizes.gemm_side,
                                .weight = weight.data(),
                                .output = output.data(),
                                .output_stride = sizes.gemm_side,
                                .rows = sizes.gemm_side,
                                .columns = sizes.gemm_side,
                                .inner = sizes.gemm_side};
  RETURN_IF_ERROR(gemm->Prepare(params));
  ASSIGN_OR_RETURN(const double seconds,
                   Time(stream, sizes.rounds, [&] { return gemm->Run(params, stream.get()); }));
  return 2.0 * sizes.gemm_side * sizes.gemm_side * sizes.gemm_side / seconds;
}

}  // namespace

absl::StatusOr<Limits> MeasureCeilings(cuda::Device& device, const CeilingSizes& sizes) {
  ASSIGN_OR_RETURN(const auto stream, cuda::Stream::Create(device));
  ASSIGN_OR_RETURN(const double bytes, CopyBytesPerSecond(device, stream, sizes));
  ASSIGN_OR_RETURN(const double flops, GemmFlopsPerSecond(device, stream, sizes));
  return Limits{.flops_per_second = flops, .bytes_per_second = bytes};
}

}  // namespace baton
