#include "kvtransfer/mapped/mapped_transport.h"

#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/status_macros.h"
#include "kvtransfer/checksum.h"

namespace baton::mapped {
namespace {

// Sits between a transport and its handler, to know which connections are open and to copy between
// messages.
//
// Not thread-safe: used only by the transfer thread.
class MappedTransport final : public Transport, public TransportHandler, public PoolReader {
 public:
  MappedTransport(std::optional<PoolFile> pool, TransportHandler& handler)
      : door_(pool ? MakeDoor(*pool) : std::string()), handler_(handler) {}

  void Wrap(std::unique_ptr<Transport> inner) { inner_ = std::move(inner); }

  std::string address() const override { return inner_->address(); }
  absl::Status RegisterRegion(const MemoryRegion& region) override {
    return inner_->RegisterRegion(region);
  }
  absl::StatusOr<PeerId> Connect(const std::string& address) override {
    return inner_->Connect(address);
  }
  absl::Status Send(PeerId peer, OutgoingMessage message) override {
    return inner_->Send(peer, std::move(message));
  }
  bool SendsChecksums(PeerId peer, std::size_t payload_bytes) const override {
    return inner_->SendsChecksums(peer, payload_bytes);
  }
  void Place(PeerId peer,
             TransferToken token,
             std::vector<std::span<std::byte>> destinations) override {
    inner_->Place(peer, token, std::move(destinations));
  }
  void Close(PeerId peer) override { inner_->Close(peer); }
  bool Streaming() const override { return reads_.empty() && inner_->Streaming(); }
  std::string CarrierOf(PeerId peer) const override { return inner_->CarrierOf(peer); }
  std::vector<PoolReader*> readers() override {
    std::vector<PoolReader*> all = inner_->readers();
    all.push_back(this);
    return all;
  }

  bool Progress() override {
    const bool worked = inner_->Progress();
    if (!reads_.empty()) {
      CopyOne();
      return true;
    }
    for (auto& [peer, pool] : pools_) {
      if (pool.PopulateMore()) {
        return true;
      }
    }
    return worked;
  }

  std::optional<int> PrepareToSleep() override {
    return reads_.empty() ? inner_->PrepareToSleep() : std::nullopt;
  }

  TransportKind kind() const override { return TransportKind::kMapped; }
  std::string Door() const override { return door_; }

  absl::Status Open(PeerId peer, std::string_view door, std::uint64_t pool_bytes) override {
    ASSIGN_OR_RETURN(MappedPool pool, MappedPool::Open(door, pool_bytes));
    pools_.insert_or_assign(peer, std::move(pool));
    return absl::OkStatus();
  }

  absl::Status Read(PeerId peer, PoolRead read) override {
    const auto pool = pools_.find(peer);
    if (pool == pools_.end()) {
      return absl::UnavailableError("connection is closed");
    }
    for (const PoolRange& range : read.ranges) {
      const std::size_t bytes = range.destination.size();
      if (bytes > pool->second.pool_bytes() || range.offset > pool->second.pool_bytes() - bytes) {
        return absl::InvalidArgumentError("read outside of the peer's pool");
      }
    }
    reads_.push_back({.peer = peer, .read = std::move(read)});
    return absl::OkStatus();
  }

  void OnAccepted(PeerId peer) override { handler_.OnAccepted(peer); }
  void OnHeard(PeerId peer) override { handler_.OnHeard(peer); }
  void OnControl(PeerId peer, std::string_view header) override {
    handler_.OnControl(peer, header);
  }
  ReceivePlan OnData(PeerId peer, std::string_view header, std::size_t payload_bytes) override {
    return handler_.OnData(peer, header, payload_bytes);
  }
  void OnReceived(PeerId peer, TransferToken token, const absl::Status& status) override {
    handler_.OnReceived(peer, token, status);
  }
  void OnSent(PeerId peer, TransferToken token, const absl::Status& status) override {
    handler_.OnSent(peer, token, status);
  }
  void OnClosed(PeerId peer, const absl::Status& why) override {
    pools_.erase(peer);
    std::deque<Queued> kept;
    std::deque<Queued> reads = std::exchange(reads_, {});
    for (Queued& one : reads) {
      if (one.peer == peer) {
        handler_.OnReceived(peer, one.read.token, why);
      } else {
        kept.push_back(std::move(one));
      }
    }
    // The handler may have asked for more meanwhile.
    reads_.insert(reads_.begin(), std::make_move_iterator(kept.begin()),
                  std::make_move_iterator(kept.end()));
    handler_.OnClosed(peer, why);
  }

 private:
  struct Queued {
    PeerId peer;
    PoolRead read;
  };

  void CopyOne() {
    const Queued next = std::move(reads_.front());
    reads_.pop_front();
    const std::byte* const base = pools_.at(next.peer).base();
    for (const PoolRange& range : next.read.ranges) {
      const std::size_t bytes = range.destination.size();
      std::byte* const to = range.destination.data();
      if (CopiedChecksum* copied = next.read.copied.get()) {
        copied->crc32c = CopyWithChecksum(to, base + range.offset, bytes, copied->crc32c);
        copied->bytes += bytes;
      } else {
        StreamCopy(to, base + range.offset, bytes);
      }
    }
    handler_.OnReceived(next.peer, next.read.token, absl::OkStatus());
  }

  const std::string door_;
  TransportHandler& handler_;
  absl::flat_hash_map<PeerId, MappedPool> pools_;  // of open connections
  std::deque<Queued> reads_;
  std::unique_ptr<Transport> inner_;
};

}  // namespace

TransportFactory MakeTransport(TransportFactory messages, std::optional<PoolFile> pool) {
  return [messages = std::move(messages),
          pool](TransportHandler& handler) -> absl::StatusOr<std::unique_ptr<Transport>> {
    auto transport = std::make_unique<MappedTransport>(pool, handler);
    ASSIGN_OR_RETURN(std::unique_ptr<Transport> inner, messages(*transport));
    transport->Wrap(std::move(inner));
    return transport;
  };
}

}  // namespace baton::mapped
