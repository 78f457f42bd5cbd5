#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/transfer_report.h"
#include "bench/transfer_shape.h"

namespace baton {

struct TransferRoundsOptions {
  TransferShape shape;
  int rounds = 7;
  std::vector<Piece> pieces = {Piece::kBlock, Piece::kLayer};
  std::vector<std::string> rows;  // names of TransferRows, in their order
  // Shell commands of other programs that move the same pieces, and what each is held against; see
  // docs/transfer-bench.md.
  std::vector<std::string> peers;
  std::string peer_limit = "raw_tcp";
  std::function<void(const std::string&)> progress;
};

// Each row gets fresh processes for its first transfer with each piece; then every round goes once
// through all rows and pieces, so that all of them see the machine at its better and worse moments.
// A row that fails keeps what it has, says why, and is left out from then on.
absl::StatusOr<TransferReport> MeasureTransfers(const TransferRoundsOptions& options);

}  // namespace baton
