#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/transfer_row.h"
#include "bench/transfer_shape.h"

namespace baton {

// All transfers of one transport with one kind of piece.
struct RowSamples {
  std::string transport;
  std::string limit;  // transport it is held against; empty: a limit itself
  Piece piece = Piece::kBlock;
  std::optional<TransferSample> first;  // of fresh processes; counts for nothing else
  std::vector<TransferSample> rounds;
  std::string failure;  // why there are no more samples; empty: there are all
};

struct TransferReport {
  TransferShape shape;
  std::string machine;             // processor and kernel
  std::string network;             // see NetworkOutcome
  std::string congestion_control;  // of the TCP connections that were looked at
  std::string pages;               // what pools lie on
  std::vector<RowSamples> rows;
  double seconds = 0;  // of the whole run
};

// Median of values; 0 when there are none.
double Median(std::vector<double> values);

// One JSON object: `results` for transports, `limits` for what they are held against, both with the
// members that docs/transfer-bench.md lists.
std::string ToJson(const TransferReport& report);
std::string ToTable(const TransferReport& report);

// Every row has all its rounds, and every transfer arrived whole.
bool IsComplete(const TransferReport& report);

}  // namespace baton
