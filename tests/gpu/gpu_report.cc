#include "tests/gpu/gpu_report.h"

#include "absl/strings/str_format.h"

namespace baton {

std::string FormatRow(const Figure& figure,
                      const Work& work,
                      const Limits& ceilings,
                      double seconds) {
  const double bytes_rate = work.bytes / seconds;
  const double flops_rate = work.flops / seconds;
  return absl::StrFormat(
      "%-26s %9.3f ms %8.0f tok/s %7.1f GB/s %5.1f%% %8.2f TFLOP/s %5.1f%%  %5.1f%% of what %s "
      "allows",
      figure.name, seconds * 1e3, figure.tokens() / seconds, bytes_rate / 1e9,
      100 * bytes_rate / ceilings.bytes_per_second, flops_rate / 1e12,
      100 * flops_rate / ceilings.flops_per_second, 100 * FloorSeconds(work, ceilings) / seconds,
      LimitName(work, ceilings));
}

}  // namespace baton
