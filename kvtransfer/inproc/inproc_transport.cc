#include "kvtransfer/inproc/inproc_transport.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/status_macros.h"
#include "kvtransfer/wakeup.h"

namespace baton::inproc {
namespace {

// What both ends of a connection share. Thread-safe.
//
// Payloads are copied with the mutex held, so whoever has set `closed` knows that the memory of
// both sides is no longer touched.
struct Link {
  absl::Mutex mutex;
  bool closed ABSL_GUARDED_BY(mutex) = false;
};

struct Accepted {};
struct Message {
  std::string header;
  std::vector<std::span<const std::byte>> payload;  // the sender's, valid while the link is open
  TransferToken token;
};
struct Sent {
  TransferToken token;
  absl::Status status;
};
struct Closed {};

class InprocTransport;

}  // namespace

// The inbox of one transport. Shared by it and by those that send to it, since either may end
// first. Thread-safe.
struct Inbox {
  struct Event {
    std::shared_ptr<Link> link;   // identifies the connection; shared by the two ends
    std::shared_ptr<Inbox> from;  // where to answer
    std::variant<Accepted, Message, Sent, Closed> what;
  };

  explicit Inbox(Wakeup wake) : wakeup(std::move(wake)) {}

  void Put(Event event) {
    {
      absl::MutexLock lock(&mutex);
      if (gone) {
        return;
      }
      events.push_back(std::move(event));
    }
    wakeup.Notify();
  }

  Wakeup wakeup;
  absl::Mutex mutex;
  std::deque<Event> events ABSL_GUARDED_BY(mutex);
  bool gone ABSL_GUARDED_BY(mutex) = false;
};

// Addresses of the transports that live. Thread-safe.
class Hub {
 public:
  std::string Add(std::shared_ptr<Inbox> inbox) {
    absl::MutexLock lock(&mutex_);
    std::string address = absl::StrCat("inproc:", next_++);
    inboxes_[address] = std::move(inbox);
    return address;
  }
  void Remove(const std::string& address) {
    absl::MutexLock lock(&mutex_);
    inboxes_.erase(address);
  }
  std::shared_ptr<Inbox> Find(const std::string& address) const {
    absl::MutexLock lock(&mutex_);
    const auto found = inboxes_.find(address);
    return found == inboxes_.end() ? nullptr : found->second;
  }

 private:
  mutable absl::Mutex mutex_;
  int next_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<std::string, std::shared_ptr<Inbox>> inboxes_ ABSL_GUARDED_BY(mutex_);
};

namespace {

// Hands messages to another thread's inbox; the receiver copies payloads straight out of the
// sender's memory.
//
// Not thread-safe: used only by the transfer thread.
class InprocTransport final : public Transport {
 public:
  InprocTransport(std::shared_ptr<Hub> hub, Wakeup wakeup, TransportHandler& handler)
      : hub_(std::move(hub)),
        inbox_(std::make_shared<Inbox>(std::move(wakeup))),
        address_(hub_->Add(inbox_)),
        handler_(handler) {}

  ~InprocTransport() override {
    hub_->Remove(address_);
    for (auto& [peer, end] : ends_) {
      Cut(end);
    }
    absl::MutexLock lock(&inbox_->mutex);
    inbox_->gone = true;
    inbox_->events.clear();
  }

  std::string address() const override { return address_; }

  absl::Status RegisterRegion(const MemoryRegion& region) override {
    return region.kind == MemoryKind::kHost
               ? absl::OkStatus()
               : absl::FailedPreconditionError("inproc moves host memory only");
  }

  absl::StatusOr<PeerId> Connect(const std::string& address) override {
    std::shared_ptr<Inbox> target = hub_->Find(address);
    if (target == nullptr) {
      return absl::UnavailableError(absl::StrCat("nobody listens at ", address));
    }
    auto link = std::make_shared<Link>();
    const PeerId peer = AddEnd(link, target);
    target->Put({.link = std::move(link), .from = inbox_, .what = Accepted()});
    return peer;
  }

  absl::Status Send(PeerId peer, OutgoingMessage message) override {
    const auto found = ends_.find(peer);
    if (found == ends_.end() || found->second.closing) {
      return absl::UnavailableError("connection is closed");
    }
    End& end = found->second;
    end.unsent.push_back(message.token);
    end.target->Put(
        {.link = end.link,
         .from = inbox_,
         .what = Message{std::move(message.header), std::move(message.payload), message.token}});
    return absl::OkStatus();
  }

  void Place(PeerId peer,
             TransferToken token,
             std::vector<std::span<std::byte>> destinations) override {
    placed_.push_back({.peer = peer, .token = token, .destinations = std::move(destinations)});
  }

  void Close(PeerId peer) override {
    if (const auto found = ends_.find(peer); found != ends_.end() && !found->second.closing) {
      Cut(found->second);
      found->second.closing = true;
      found->second.why = absl::CancelledError("closed here");
      closing_.push_back(peer);
    }
  }

  bool Progress() override {
    std::deque<Inbox::Event> events;
    if (inbox_->wakeup.Consume()) {
      absl::MutexLock lock(&inbox_->mutex);
      events.swap(inbox_->events);
    }
    for (Inbox::Event& event : events) {
      Handle(event);
    }
    const std::vector<Placed> placed = std::exchange(placed_, {});
    for (const Placed& one : placed) {
      ReceivePlaced(one);
    }
    const std::vector<PeerId> closing = std::exchange(closing_, {});
    for (const PeerId peer : closing) {
      ReportClosed(peer);
    }
    return !events.empty() || !placed.empty() || !closing.empty();
  }

  std::optional<int> PrepareToSleep() override {
    return closing_.empty() && placed_.empty() ? std::optional(inbox_->wakeup.fd()) : std::nullopt;
  }

  std::string CarrierOf(PeerId) const override { return "inproc"; }

 private:
  struct End {
    std::shared_ptr<Link> link;                           // shared with the other end
    std::shared_ptr<Inbox> target;                        // the other end's
    std::deque<TransferToken> unsent;                     // sent and not reported
    absl::flat_hash_map<TransferToken, Message> waiting;  // arrived, to be placed later
    bool closing = false;
    absl::Status why;
  };
  struct Placed {
    PeerId peer;
    TransferToken token;
    std::vector<std::span<std::byte>> destinations;
  };

  PeerId AddEnd(std::shared_ptr<Link> link, std::shared_ptr<Inbox> target) {
    const PeerId peer = MakePeerId();
    by_link_[link.get()] = peer;
    ends_[peer] = {.link = std::move(link),
                   .target = std::move(target),
                   .unsent = {},
                   .waiting = {},
                   .closing = false,
                   .why = {}};
    return peer;
  }

  // After this no memory of either side is touched through the link.
  void Cut(End& end) {
    {
      absl::MutexLock lock(&end.link->mutex);
      end.link->closed = true;
    }
    end.target->Put({.link = end.link, .from = inbox_, .what = Closed()});
  }

  void Handle(Inbox::Event& event) {
    if (std::holds_alternative<Accepted>(event.what)) {
      handler_.OnAccepted(AddEnd(event.link, event.from));
      return;
    }
    const auto found = by_link_.find(event.link.get());
    if (found == by_link_.end()) {
      return;
    }
    const PeerId peer = found->second;
    End& end = ends_.at(peer);
    if (end.closing) {
      return;
    }
    if (auto* message = std::get_if<Message>(&event.what)) {
      Receive(peer, *message);
    } else if (const auto* sent = std::get_if<Sent>(&event.what)) {
      std::erase(end.unsent, sent->token);
      handler_.OnSent(peer, sent->token, sent->status);
    } else {
      end.closing = true;
      end.why = absl::UnavailableError("connection closed by the peer");
      closing_.push_back(peer);
    }
  }

  void Receive(PeerId peer, Message& message) {
    std::size_t payload_bytes = 0;
    for (const std::span<const std::byte> part : message.payload) {
      payload_bytes += part.size();
    }
    if (payload_bytes == 0) {
      AnswerSent(ends_.at(peer), message);
      handler_.OnControl(peer, message.header);
      return;
    }
    const ReceivePlan plan = handler_.OnData(peer, message.header, payload_bytes);
    // Looked up again: the handler may have made connections.
    End& end = ends_.at(peer);
    if (plan.later) {
      end.waiting[plan.token] = std::move(message);
    } else if (plan.accept) {
      Fill(peer, end, message, plan.token, plan.destinations);
    } else {
      AnswerSent(end, message);
    }
  }

  void ReceivePlaced(const Placed& placed) {
    const auto found = ends_.find(placed.peer);
    if (found == ends_.end() || found->second.closing) {
      return;
    }
    const auto waiting = found->second.waiting.find(placed.token);
    if (waiting != found->second.waiting.end()) {
      const Message message = std::move(waiting->second);
      found->second.waiting.erase(waiting);
      Fill(placed.peer, found->second, message, placed.token, placed.destinations);
    }
  }

  void Fill(PeerId peer,
            End& end,
            const Message& message,
            TransferToken token,
            const std::vector<std::span<std::byte>>& destinations) {
    bool copied = false;
    {
      absl::MutexLock lock(&end.link->mutex);
      if (!end.link->closed) {
        Copy(message.payload, destinations);
        copied = true;
      }
    }
    AnswerSent(end, message);
    handler_.OnReceived(
        peer, token,
        copied ? absl::OkStatus() : absl::UnavailableError("connection closed by the peer"));
  }

  void AnswerSent(const End& end, const Message& message) {
    end.target->Put(
        {.link = end.link, .from = inbox_, .what = Sent{message.token, absl::OkStatus()}});
  }

  static void Copy(std::vector<std::span<const std::byte>> from,
                   std::vector<std::span<std::byte>> to) {
    std::size_t source = 0;
    for (std::span<std::byte>& destination : to) {
      while (!destination.empty() && source < from.size()) {
        const std::size_t bytes = std::min(destination.size(), from[source].size());
        std::copy_n(from[source].begin(), bytes, destination.begin());
        destination = destination.subspan(bytes);
        from[source] = from[source].subspan(bytes);
        source += from[source].empty() ? 1 : 0;
      }
    }
  }

  void ReportClosed(PeerId peer) {
    const auto found = ends_.find(peer);
    const End end = std::move(found->second);
    by_link_.erase(end.link.get());
    ends_.erase(found);
    for (const TransferToken token : end.unsent) {
      handler_.OnSent(peer, token, end.why);
    }
    for (const auto& [token, message] : end.waiting) {
      handler_.OnReceived(peer, token, end.why);
    }
    handler_.OnClosed(peer, end.why);
  }

  const std::shared_ptr<Hub> hub_;      // shared by all transports of the hub
  const std::shared_ptr<Inbox> inbox_;  // shared with the peers' ends
  const std::string address_;
  TransportHandler& handler_;
  absl::flat_hash_map<PeerId, End> ends_;
  absl::flat_hash_map<const Link*, PeerId> by_link_;
  std::vector<Placed> placed_;
  std::vector<PeerId> closing_;
};

}  // namespace

std::shared_ptr<Hub> MakeHub() {
  return std::make_shared<Hub>();
}

TransportFactory MakeTransport(std::shared_ptr<Hub> hub) {
  return [hub = std::move(hub)](
             TransportHandler& handler) -> absl::StatusOr<std::unique_ptr<Transport>> {
    ASSIGN_OR_RETURN(Wakeup wakeup, Wakeup::Create());
    return std::make_unique<InprocTransport>(hub, std::move(wakeup), handler);
  };
}

}  // namespace baton::inproc
