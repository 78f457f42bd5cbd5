#include "kvtransfer/transport_set.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "kvtransfer/transport_choice.h"

namespace baton {
namespace {

// Knows which member a connection belongs to; everything else goes through.
//
// Not thread-safe: used only by the transfer thread.
class TransportSet final : public Transport {
 public:
  TransportSet(UniqueFd epoll, TransportHandler& handler)
      : epoll_(std::move(epoll)), handler_(handler) {}

  absl::Status Add(const TransportFactory& factory) {
    auto member = std::make_unique<Member>(*this);
    Member& added = *member;
    members_.push_back(std::move(member));
    ASSIGN_OR_RETURN(added.transport, factory(added));
    return absl::OkStatus();
  }

  std::string address() const override {
    std::vector<std::string> addresses;
    for (const auto& member : members_) {
      addresses.push_back(member->transport->address());
    }
    return JoinAddresses(addresses);
  }

  absl::Status RegisterRegion(const MemoryRegion& region) override {
    for (const auto& member : members_) {
      RETURN_IF_ERROR(member->transport->RegisterRegion(region));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<PeerId> Connect(const std::string& address) override {
    const std::vector<Route> wanted = ParseAddresses(address);
    for (const auto& member : members_) {
      if (wanted.size() == 1 &&
          wanted[0].kind == ParseAddresses(member->transport->address())[0].kind) {
        ASSIGN_OR_RETURN(const PeerId peer, member->transport->Connect(address));
        owners_[peer] = member.get();
        return peer;
      }
    }
    return absl::InvalidArgumentError(
        absl::StrCat("address \"", address, "\" is of no transport here"));
  }

  absl::Status Send(PeerId peer, OutgoingMessage message) override {
    Member* owner = OwnerOf(peer);
    return owner != nullptr ? owner->transport->Send(peer, std::move(message))
                            : absl::UnavailableError("connection is closed");
  }
  bool SendsChecksums(PeerId peer, std::size_t payload_bytes) const override {
    const auto owner = owners_.find(peer);
    return owner != owners_.end() && owner->second->transport->SendsChecksums(peer, payload_bytes);
  }
  void Place(PeerId peer,
             TransferToken token,
             std::vector<std::span<std::byte>> destinations) override {
    if (Member* owner = OwnerOf(peer)) {
      owner->transport->Place(peer, token, std::move(destinations));
    }
  }
  void Close(PeerId peer) override {
    if (Member* owner = OwnerOf(peer)) {
      owner->transport->Close(peer);
    }
  }

  bool Progress() override {
    bool worked = false;
    for (const auto& member : members_) {
      worked = member->transport->Progress() || worked;
    }
    return worked;
  }

  // One descriptor for all: members keep theirs, so each is added once.
  std::optional<int> PrepareToSleep() override {
    for (const auto& member : members_) {
      const std::optional<int> fd = member->transport->PrepareToSleep();
      if (!fd) {
        return std::nullopt;
      }
      if (watched_.insert(*fd).second) {
        epoll_event event{.events = EPOLLIN, .data = {.fd = *fd}};
        if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, *fd, &event) != 0 && errno != EEXIST) {
          return std::nullopt;
        }
      }
    }
    return epoll_.get();
  }

  bool Streaming() const override {
    return std::any_of(members_.begin(), members_.end(),
                       [](const auto& member) { return member->transport->Streaming(); });
  }

  std::string CarrierOf(PeerId peer) const override {
    const auto owner = owners_.find(peer);
    return owner == owners_.end() ? "unknown" : owner->second->transport->CarrierOf(peer);
  }

  std::vector<PoolReader*> readers() override {
    std::vector<PoolReader*> all;
    for (const auto& member : members_) {
      const std::vector<PoolReader*> its = member->transport->readers();
      all.insert(all.end(), its.begin(), its.end());
    }
    return all;
  }

 private:
  // One transport, and what it reports to.
  struct Member final : TransportHandler {
    explicit Member(TransportSet& of) : set(of) {}

    void OnAccepted(PeerId peer) override {
      set.owners_[peer] = this;
      set.handler_.OnAccepted(peer);
    }
    void OnHeard(PeerId peer) override { set.handler_.OnHeard(peer); }
    void OnControl(PeerId peer, std::string_view header) override {
      set.handler_.OnControl(peer, header);
    }
    ReceivePlan OnData(PeerId peer, std::string_view header, std::size_t payload_bytes) override {
      return set.handler_.OnData(peer, header, payload_bytes);
    }
    void OnReceived(PeerId peer, TransferToken token, const absl::Status& status) override {
      set.handler_.OnReceived(peer, token, status);
    }
    void OnSent(PeerId peer, TransferToken token, const absl::Status& status) override {
      set.handler_.OnSent(peer, token, status);
    }
    void OnClosed(PeerId peer, const absl::Status& why) override {
      set.owners_.erase(peer);
      set.handler_.OnClosed(peer, why);
    }

    TransportSet& set;
    std::unique_ptr<Transport> transport;
  };

  Member* OwnerOf(PeerId peer) {
    const auto owner = owners_.find(peer);
    return owner == owners_.end() ? nullptr : owner->second;
  }

  const UniqueFd epoll_;
  TransportHandler& handler_;
  absl::flat_hash_set<int> watched_;
  absl::flat_hash_map<PeerId, Member*> owners_;  // of open connections
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace

TransportFactory MakeTransportSet(std::vector<TransportFactory> members) {
  return [members = std::move(members)](
             TransportHandler& handler) -> absl::StatusOr<std::unique_ptr<Transport>> {
    UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
    if (!epoll.ok()) {
      return absl::ResourceExhaustedError(absl::StrCat("epoll: ", std::strerror(errno)));
    }
    auto set = std::make_unique<TransportSet>(std::move(epoll), handler);
    for (const TransportFactory& member : members) {
      RETURN_IF_ERROR(set->Add(member));
    }
    return set;
  };
}

}  // namespace baton
