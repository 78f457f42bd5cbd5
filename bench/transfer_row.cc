#include "bench/transfer_row.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/cores.h"
#include "bench/memcpy_row.h"
#include "bench/service_row.h"
#include "bench/socket_row.h"
#include "common/status_macros.h"
#include "kvtransfer/grpc_stream/grpc_stream_transport.h"
#include "kvtransfer/ucx/ucx_transport.h"

namespace baton {
namespace {

TransferRow Memcpy(std::string name, PoolMemory source) {
  return {.name = std::move(name), .receive = [source](const TransferShape& shape) {
            return MakeMemcpyReceiver(shape, source);
          }};
}

TransferRow Socket(const std::string& name, bool checksums) {
  return {.name = name,
          .receive =
              [name, checksums](const TransferShape& shape) {
                return MakeSocketReceiver(name, shape, checksums);
              },
          .send = [checksums](
                      const TransferShape& shape) { return RunSocketSender(shape, checksums); }};
}

TransferRow Service(const std::string& name, std::string limit, ServiceRow service) {
  return {
      .name = name,
      .limit = std::move(limit),
      .receive =
          [name, service](const TransferShape& shape) {
            return MakeServiceReceiver(name, service, shape);
          },
      .send = [service](const TransferShape& shape) { return RunServiceSender(service, shape); }};
}

// REQUIRES: no other thread yet.
TransportFactory MakeUcx() {
  ucx::SetDefaults();
  return ucx::MakeTransport({});
}

}  // namespace

const std::vector<TransferRow>& TransferRows() {
  static const std::vector<TransferRow> rows = {
      Memcpy("memcpy", PoolMemory::kHugePages),
      Memcpy("memcpy_memfd", PoolMemory::kSharedFile),
      Socket("raw_tcp", /*checksums=*/false),
      Socket("raw_tcp_crc32c", /*checksums=*/true),
      // Every message of a TransferService has a checksum that both sides compute, but for the rows
      // that show what these cost.
      Service("tcp", "raw_tcp_crc32c", {.transport = MakeUcx, .memory = PoolMemory::kHugePages}),
      Service("mapped", "memcpy_memfd",
              {.transport = MakeUcx, .memory = PoolMemory::kSharedFile, .mapped = true}),
      Service("tcp_unchecked", "raw_tcp",
              {.transport = MakeUcx, .memory = PoolMemory::kHugePages, .checksums = false}),
      Service("mapped_unchecked", "memcpy_memfd",
              {.transport = MakeUcx,
               .memory = PoolMemory::kSharedFile,
               .mapped = true,
               .checksums = false}),
      Service("grpc", "raw_tcp_crc32c",
              {.transport = [] { return grpc_stream::MakeTransport({}); }}),
  };
  return rows;
}

const TransferRow* FindTransferRow(const std::string& name) {
  for (const TransferRow& row : TransferRows()) {
    if (row.name == name) {
      return &row;
    }
  }
  return nullptr;
}

std::vector<std::string> EndCommand(const std::string& end,
                                    const std::string& row,
                                    const TransferShape& shape) {
  return {std::filesystem::read_symlink("/proc/self/exe"),
          end,
          row,
          absl::StrCat(shape.blocks),
          absl::StrCat(shape.layers),
          absl::StrCat(shape.layer_bytes),
          shape.cores_apart ? "apart" : "anywhere"};
}

absl::Status RunSenderOf(const TransferRow& row, const TransferShape& shape) {
  if (shape.cores_apart) {
    RETURN_IF_ERROR(PinProcess({PermittedCores().front()}));
  }
  return row.send(shape);
}

absl::Status RunReceiver(const TransferRow& row, const TransferShape& shape) {
  const int core = PermittedCores().back();
  ASSIGN_OR_RETURN(const std::unique_ptr<TransferReceiver> receiver, row.receive(shape));
  if (shape.cores_apart) {
    // Only now: the sender has inherited the choice of cores.
    RETURN_IF_ERROR(PinProcess({core}));
  }
  std::printf("%s\n", nlohmann::json{{"transports", {row.name}}}.dump().c_str());
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string verb;
    std::string name;
    std::string piece_name;
    int round = 0;
    words >> verb >> name >> piece_name >> round;
    const std::optional<Piece> piece = PieceFromString(piece_name);
    if (verb != "transfer" || name != row.name || !piece.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("unknown request: ", line));
    }
    ASSIGN_OR_RETURN(const TransferSample sample, receiver->Transfer(*piece, round));
    const nlohmann::json answer = {{"seconds", sample.seconds},
                                   {"posting_seconds", sample.posting_seconds},
                                   {"sender_cpu_seconds", sample.sender_cpu_seconds},
                                   {"receiver_cpu_seconds", sample.receiver_cpu_seconds},
                                   {"piece_bytes", sample.piece_bytes},
                                   {"verified", sample.verified},
                                   {"carrier", sample.carrier},
                                   {"congestion_control", CongestionControl()}};
    std::printf("%s\n", answer.dump().c_str());
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

std::string CongestionControl() {
  std::set<std::string> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    int listening = 1;
    socklen_t size = sizeof(listening);
    char name[16] = {};
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || listening != 0) {
      continue;
    }
    size = sizeof(name) - 1;
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) == 0) {
      found.insert(name);
    }
  }
  return absl::StrJoin(found, ",");
}

}  // namespace baton
