#include "bench/service_row.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "bench/machine_limits.h"
#include "bench/transfer_sender.h"
#include "common/status_macros.h"
#include "kvtransfer/mapped/mapped_transport.h"
#include "kvtransfer/transfer_service.h"

namespace baton {
namespace {

constexpr int kChunkBlocks = 16;  // rows of one step of the engine, in blocks
constexpr Duration kHandOverPoll = std::chrono::microseconds(500);

// Hex digits of an id, or an error.
template <typename Id>
absl::StatusOr<Id> ParseId(const std::string& hex) {
  Id id;
  if (hex.size() != 2 * id.bytes.size() ||
      hex.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("not an id: ", hex));
  }
  for (std::size_t i = 0; i < id.bytes.size(); ++i) {
    id.bytes[i] = static_cast<std::uint8_t>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return id;
}

// Adds up the time of the calls that a computing thread would make.
class Posting {
 public:
  template <typename Call>
  auto operator()(Call call) {
    const TimePoint start = Clock::System().Now();
    auto result = call();
    total_ += Clock::System().Now() - start;
    return result;
  }
  double seconds() const { return std::chrono::duration<double>(total_).count(); }

 private:
  Duration total_{};
};

// The one end of each handoff. Thread-safe.
class HandoffEnd final : public OfferSink, public FetchSink {
 public:
  void Expect() {
    absl::MutexLock lock(&mutex_);
    ended_ = false;
  }
  void OnEnd(HandoffId /*id*/,
             PrefillHandoffState end,
             const absl::Status& why,
             const OfferStats& /*stats*/) override {
    Set(end == PrefillHandoffState::kReleased ? absl::OkStatus() : why, {});
  }
  void OnLanded(HandoffId /*id*/, const FetchStats& stats) override {
    Set(absl::OkStatus(), stats);
  }
  void OnFailed(HandoffId /*id*/,
                const absl::Status& why,
                const std::vector<int>& /*whole_blocks*/) override {
    Set(why, {});
  }
  // When the event came.
  absl::StatusOr<TimePoint> Await() {
    absl::MutexLock lock(&mutex_);
    if (!mutex_.AwaitWithTimeout(absl::Condition(&ended_), absl::FromChrono(kTransferPatience))) {
      return absl::DeadlineExceededError("the handoff does not end");
    }
    RETURN_IF_ERROR(why_);
    return when_;
  }
  FetchStats stats() const {
    absl::MutexLock lock(&mutex_);
    return stats_;
  }

 private:
  void Set(absl::Status why, FetchStats stats) {
    absl::MutexLock lock(&mutex_);
    when_ = Clock::System().Now();
    ended_ = true;
    why_ = std::move(why);
    stats_ = std::move(stats);
  }

  mutable absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  TimePoint when_ ABSL_GUARDED_BY(mutex_);
  absl::Status why_ ABSL_GUARDED_BY(mutex_);
  FetchStats stats_ ABSL_GUARDED_BY(mutex_);
};

// Blocks of this program's pool belong to nobody else.
class NoPin final : public RegionPin {};

// A pool and its service.
struct ServiceEnd {
  InstanceId instance = InstanceId::Make();
  std::unique_ptr<TransferPool> pool;
  HandoffEnd end;  // outlives the service
  std::unique_ptr<TransferService> service;
};

absl::StatusOr<std::unique_ptr<ServiceEnd>> MakeEnd(const ServiceRow& row,
                                                    const TransferShape& shape,
                                                    PoolMemory memory) {
  auto end = std::make_unique<ServiceEnd>();
  TransportFactory factory = row.transport();
  ASSIGN_OR_RETURN(end->pool, TransferPool::Create(shape, memory));
  if (row.mapped) {
    std::optional<mapped::PoolFile> file;
    if (memory == PoolMemory::kSharedFile) {
      file = mapped::PoolFile{.fd = end->pool->fd(),
                              .base = end->pool->region().base,
                              .pool_bytes = end->pool->size_bytes(),
                              .file_bytes = end->pool->file_bytes()};
    }
    factory = mapped::MakeTransport(std::move(factory), file);
  }
  TransferOptions options;
  // A row that fell back to another transport would measure that.
  options.transport.forced = row.mapped ? std::optional(TransportKind::kMapped) : std::nullopt;
  options.instance = end->instance;
  options.checksums = row.checksums;
  options.pool = end->pool->region();
  ASSIGN_OR_RETURN(end->service, TransferService::Start(std::move(options), factory));
  return end;
}

class ServiceSender final : public TransferSender {
 public:
  ServiceSender(const TransferShape& shape, std::unique_ptr<ServiceEnd> end)
      : shape_(shape), end_(std::move(end)) {}

  std::string Address() const override {
    return absl::StrCat(end_->service->address(), ",", end_->instance.ToString());
  }
  absl::Status Prepare(Piece piece, int round, const std::string& ticket) override {
    const std::vector<std::string> ids = absl::StrSplit(ticket, ',');
    if (ids.size() != 2) {
      return absl::InvalidArgumentError(absl::StrCat("not a handoff and its peer: ", ticket));
    }
    ASSIGN_OR_RETURN(handoff_, ParseId<HandoffId>(ids[0]));
    ASSIGN_OR_RETURN(peer_, ParseId<InstanceId>(ids[1]));
    piece_ = piece;
    blocks_ = end_->pool->Scatter(round, TransferPool::Side::kSource);
    end_->pool->Fill(blocks_, round);
    return absl::OkStatus();
  }
  absl::StatusOr<Report> Send() override {
    Posting posting;
    end_->end.Expect();
    OfferRequest offer{.id = handoff_,
                       .epoch = 1,
                       .peer = peer_,
                       .blocks = blocks_,
                       .pin = std::make_unique<NoPin>(),
                       .sink = &end_->end};
    RETURN_IF_ERROR(posting([&] { return end_->service->Offer(std::move(offer)); }));
    if (piece_ == Piece::kBlock) {
      for (int first = 0; first < shape_.blocks; first += kChunkBlocks) {
        MarkReady(posting, {.first_block = first,
                            .block_count = std::min(kChunkBlocks, shape_.blocks - first),
                            .first_layer = 0,
                            .layer_count = shape_.layers});
      }
    } else {
      const std::uint64_t before = end_->service->stats().bytes_sent;
      MarkEveryOther(posting, 0);
      RETURN_IF_ERROR(AwaitHandedOver(before, (shape_.layers + 1) / 2));
      MarkEveryOther(posting, 1);
    }
    posting([&] {
      end_->service->FinishComputing(handoff_);
      return 0;
    });
    RETURN_IF_ERROR(end_->end.Await().status());
    return Report{.posting_seconds = posting.seconds(),
                  .piece_bytes = static_cast<double>(shape_.piece_bytes(piece_))};
  }

 private:
  void MarkReady(Posting& posting, const ReadyRange& range) {
    posting([&] {
      end_->service->MarkReady(handoff_, range);
      return 0;
    });
  }

  // One layer of all blocks at a time.
  void MarkEveryOther(Posting& posting, int first) {
    for (int layer = first; layer < shape_.layers; layer += 2) {
      MarkReady(
          posting,
          {.first_block = 0, .block_count = shape_.blocks, .first_layer = layer, .layer_count = 1});
    }
  }
  // Until so many layers of all blocks are on their way.
  absl::Status AwaitHandedOver(std::uint64_t sent_before, int layers) {
    const std::uint64_t all = sent_before + shape_.layer_bytes *
                                                static_cast<std::uint64_t>(shape_.blocks) *
                                                static_cast<std::uint64_t>(layers);
    const TimePoint deadline = Clock::System().Now() + kTransferPatience;
    while (end_->service->stats().bytes_sent < all) {
      if (Clock::System().Now() > deadline) {
        return absl::DeadlineExceededError("the service does not send what is ready");
      }
      std::this_thread::sleep_for(kHandOverPoll);
    }
    return absl::OkStatus();
  }

  const TransferShape shape_;
  const std::unique_ptr<ServiceEnd> end_;
  HandoffId handoff_;
  InstanceId peer_;
  Piece piece_ = Piece::kBlock;
  std::vector<BlockId> blocks_;
};

class ServiceReceiver final : public TransferReceiver {
 public:
  ServiceReceiver(std::unique_ptr<ServiceEnd> end,
                  std::unique_ptr<SenderProcess> sender,
                  std::string address,
                  InstanceId peer)
      : end_(std::move(end)),
        sender_(std::move(sender)),
        address_(std::move(address)),
        peer_(peer) {}

  absl::StatusOr<TransferSample> Transfer(Piece piece, int round) override {
    const HandoffId handoff = HandoffId::Make();
    RETURN_IF_ERROR(sender_->Prepare(
        piece, round, absl::StrCat(handoff.ToString(), ",", end_->instance.ToString())));
    const std::vector<BlockId> blocks =
        end_->pool->Scatter(round, TransferPool::Side::kDestination);
    FetchRequest fetch{.id = handoff,
                       .epoch = 1,
                       .address = address_,
                       .peer = peer_,
                       .pin = std::make_unique<NoPin>(),
                       .sink = &end_->end};
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      fetch.blocks.push_back({.source_index = static_cast<int>(i), .destination = blocks[i]});
    }
    end_->end.Expect();

    Posting posting;
    const double cpu = ProcessCpuSeconds();
    const TimePoint start = Clock::System().Now();
    fetch.deadline = start + kTransferPatience;
    RETURN_IF_ERROR(sender_->Go());
    RETURN_IF_ERROR(posting([&] { return end_->service->Fetch(std::move(fetch)); }));
    ASSIGN_OR_RETURN(const TimePoint landed, end_->end.Await());
    const double used = ProcessCpuSeconds() - cpu;
    ASSIGN_OR_RETURN(const SenderProcess::Done done, sender_->AwaitDone());
    const bool verified = end_->pool->Holds(blocks, round);
    return TransferSample{.seconds = std::chrono::duration<double>(landed - start).count(),
                          .posting_seconds = done.report.posting_seconds + posting.seconds(),
                          .sender_cpu_seconds = done.cpu_seconds,
                          .receiver_cpu_seconds = used,
                          .piece_bytes = done.report.piece_bytes,
                          .verified = verified,
                          .carrier = end_->end.stats().transport};
  }

 private:
  const std::unique_ptr<ServiceEnd> end_;
  const std::unique_ptr<SenderProcess> sender_;
  const std::string address_;
  const InstanceId peer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TransferReceiver>> MakeServiceReceiver(const std::string& row,
                                                                      const ServiceRow& service,
                                                                      const TransferShape& shape) {
  ASSIGN_OR_RETURN(std::unique_ptr<SenderProcess> sender, SenderProcess::Start(row, shape));
  ASSIGN_OR_RETURN(std::unique_ptr<ServiceEnd> end,
                   MakeEnd(service, shape, PoolMemory::kHugePages));
  const std::vector<std::string> parts = absl::StrSplit(sender->address(), ',');
  if (parts.size() != 2) {
    return absl::InternalError(absl::StrCat("sender: ", sender->address()));
  }
  ASSIGN_OR_RETURN(const InstanceId peer, ParseId<InstanceId>(parts[1]));
  return std::make_unique<ServiceReceiver>(std::move(end), std::move(sender), parts[0], peer);
}

absl::Status RunServiceSender(const ServiceRow& service, const TransferShape& shape) {
  ASSIGN_OR_RETURN(std::unique_ptr<ServiceEnd> end, MakeEnd(service, shape, service.memory));
  ServiceSender sender(shape, std::move(end));
  return RunSender(sender);
}

}  // namespace baton
