#include "bench/socket_row.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/machine_limits.h"
#include "bench/transfer_pool.h"
#include "bench/transfer_sender.h"
#include "common/crc32c.h"
#include "common/status_macros.h"

namespace baton {
namespace {

constexpr std::size_t kGroupBytes = 3 << 20;

absl::Status SocketError(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// Calls `move`, readv or writev, until all of `parts` has gone through; consumes them.
absl::Status MoveAll(ssize_t (*move)(int, const iovec*, int), int fd, std::vector<iovec>& parts) {
  for (std::size_t next = 0; next < parts.size();) {
    ssize_t count = move(fd, &parts[next], static_cast<int>(parts.size() - next));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      return SocketError("raw socket");
    }
    for (; next < parts.size() && static_cast<std::size_t>(count) >= parts[next].iov_len; ++next) {
      count -= static_cast<ssize_t>(parts[next].iov_len);
    }
    if (count > 0) {
      parts[next].iov_base = static_cast<char*>(parts[next].iov_base) + count;
      parts[next].iov_len -= static_cast<std::size_t>(count);
    }
  }
  return absl::OkStatus();
}

std::uint32_t ChecksumOf(std::span<const std::span<std::byte>> pieces) {
  std::uint32_t crc = 0;
  for (const std::span<std::byte> piece : pieces) {
    crc = Crc32c({reinterpret_cast<const char*>(piece.data()), piece.size()}, crc);
  }
  return crc;
}

// Pieces [first, the result) go through one call.
std::size_t EndOfGroup(std::span<const std::span<std::byte>> pieces, std::size_t first) {
  std::size_t end = first + 1;
  for (std::size_t bytes = pieces[first].size();
       end < pieces.size() && bytes + pieces[end].size() <= kGroupBytes &&
       end - first + 1 < IOV_MAX;
       ++end) {
    bytes += pieces[end].size();
  }
  return end;
}

absl::Status SendPieces(int fd, std::span<const std::span<std::byte>> pieces, bool checksums) {
  std::vector<iovec> parts;
  for (std::size_t first = 0; first < pieces.size();) {
    const std::size_t end = EndOfGroup(pieces, first);
    const auto group = pieces.subspan(first, end - first);
    std::uint32_t crc = 0;
    parts.clear();
    for (const std::span<std::byte> piece : group) {
      parts.push_back({.iov_base = piece.data(), .iov_len = piece.size()});
    }
    if (checksums) {
      crc = ChecksumOf(group);
      parts.push_back({.iov_base = &crc, .iov_len = sizeof(crc)});
    }
    RETURN_IF_ERROR(MoveAll(&writev, fd, parts));
    first = end;
  }
  return absl::OkStatus();
}

absl::Status ReceivePieces(int fd, std::span<const std::span<std::byte>> pieces, bool checksums) {
  std::vector<iovec> parts;
  for (std::size_t first = 0; first < pieces.size();) {
    const std::size_t end = EndOfGroup(pieces, first);
    const auto group = pieces.subspan(first, end - first);
    std::uint32_t crc = 0;
    parts.clear();
    for (const std::span<std::byte> piece : group) {
      parts.push_back({.iov_base = piece.data(), .iov_len = piece.size()});
    }
    if (checksums) {
      parts.push_back({.iov_base = &crc, .iov_len = sizeof(crc)});
    }
    RETURN_IF_ERROR(MoveAll(&readv, fd, parts));
    if (checksums && crc != ChecksumOf(group)) {
      return absl::DataLossError("raw socket: checksum mismatch");
    }
    first = end;
  }
  return absl::OkStatus();
}

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

class SocketSender final : public TransferSender {
 public:
  SocketSender(std::unique_ptr<TransferPool> pool, UniqueFd listener, bool checksums)
      : pool_(std::move(pool)), listener_(std::move(listener)), checksums_(checksums) {}

  std::string Address() const override {
    sockaddr_in address{};
    socklen_t size = sizeof(address);
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    return absl::StrCat(ntohs(address.sin_port));
  }
  absl::Status Prepare(Piece piece, int round, const std::string& /*ticket*/) override {
    const std::vector<BlockId> blocks = pool_->Scatter(round, TransferPool::Side::kSource);
    pool_->Fill(blocks, round);
    pieces_ = pool_->Pieces(blocks, piece);
    return absl::OkStatus();
  }
  absl::StatusOr<Report> Send() override {
    if (!connection_.ok()) {
      connection_ = UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    }
    if (!connection_.ok()) {
      return SocketError("accept");
    }
    RETURN_IF_ERROR(SendPieces(connection_.get(), pieces_, checksums_));
    return Report{.piece_bytes = static_cast<double>(pieces_.front().size())};
  }

 private:
  const std::unique_ptr<TransferPool> pool_;
  const UniqueFd listener_;
  const bool checksums_;
  UniqueFd connection_;
  std::vector<std::span<std::byte>> pieces_;
};

class SocketReceiver final : public TransferReceiver {
 public:
  SocketReceiver(std::unique_ptr<TransferPool> pool,
                 std::unique_ptr<SenderProcess> sender,
                 UniqueFd connection,
                 bool checksums)
      : pool_(std::move(pool)),
        sender_(std::move(sender)),
        connection_(std::move(connection)),
        checksums_(checksums) {}

  absl::StatusOr<TransferSample> Transfer(Piece piece, int round) override {
    RETURN_IF_ERROR(sender_->Prepare(piece, round, "-"));
    const std::vector<BlockId> blocks = pool_->Scatter(round, TransferPool::Side::kDestination);
    const std::vector<std::span<std::byte>> pieces = pool_->Pieces(blocks, piece);

    const double cpu = ProcessCpuSeconds();
    const TimePoint start = Clock::System().Now();
    RETURN_IF_ERROR(sender_->Go());
    RETURN_IF_ERROR(ReceivePieces(connection_.get(), pieces, checksums_));
    const Duration took = Clock::System().Now() - start;
    const double used = ProcessCpuSeconds() - cpu;
    ASSIGN_OR_RETURN(const SenderProcess::Done done, sender_->AwaitDone());
    const bool verified = pool_->Holds(blocks, round);
    return TransferSample{.seconds = std::chrono::duration<double>(took).count(),
                          .sender_cpu_seconds = done.cpu_seconds,
                          .receiver_cpu_seconds = used,
                          .piece_bytes = done.report.piece_bytes,
                          .verified = verified,
                          .carrier = "tcp"};
  }

 private:
  const std::unique_ptr<TransferPool> pool_;
  const std::unique_ptr<SenderProcess> sender_;
  const UniqueFd connection_;
  const bool checksums_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TransferReceiver>> MakeSocketReceiver(const std::string& row,
                                                                     const TransferShape& shape,
                                                                     bool checksums) {
  ASSIGN_OR_RETURN(std::unique_ptr<TransferPool> pool,
                   TransferPool::Create(shape, PoolMemory::kHugePages));
  ASSIGN_OR_RETURN(std::unique_ptr<SenderProcess> sender, SenderProcess::Start(row, shape));
  UniqueFd connection(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(std::atoi(sender->address().c_str()));
  if (!connection.ok() || connect(connection.get(), reinterpret_cast<const sockaddr*>(&address),
                                  sizeof(address)) != 0) {
    return SocketError("connect to the sender");
  }
  return std::make_unique<SocketReceiver>(std::move(pool), std::move(sender), std::move(connection),
                                          checksums);
}

absl::Status RunSocketSender(const TransferShape& shape, bool checksums) {
  ASSIGN_OR_RETURN(std::unique_ptr<TransferPool> pool,
                   TransferPool::Create(shape, PoolMemory::kHugePages));
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(0);
  if (!listener.ok() ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener.get(), 1) != 0) {
    return SocketError("listen on loopback");
  }
  SocketSender sender(std::move(pool), std::move(listener), checksums);
  return RunSender(sender);
}

}  // namespace baton
