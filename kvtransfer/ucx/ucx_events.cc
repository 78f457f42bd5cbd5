#include "kvtransfer/ucx/ucx_events.h"

#include "common/status_macros.h"
#include "kvtransfer/ucx/ucx_fragments.h"

namespace baton::ucx {

absl::Status UcxEvents::RegisterMessages(ucp_worker_h worker) {
  for (const auto& [id, callback] :
       {std::pair{kControlId, &ControlArrived}, std::pair{kDataId, &DataArrived},
        std::pair{kAnnounceId, &AnnounceArrived}, std::pair{kAnswerId, &AnswerArrived},
        std::pair{kFragmentId, &FragmentArrived}}) {
    const ucp_am_handler_param_t params{
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = id,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = callback,
        .arg = this,
    };
    RETURN_IF_ERROR(
        ToStatus(ucp_worker_set_am_recv_handler(worker, &params), "register UCX messages"));
  }
  return absl::OkStatus();
}

Operation& UcxEvents::Start(PeerId peer, OperationKind kind, TransferToken token) {
  auto operation = std::make_unique<Operation>();
  operation->events = this;
  operation->peer = peer;
  operation->kind = kind;
  operation->token = token;
  Operation& started = *operation;
  operations_[&started] = std::move(operation);
  return started;
}

void UcxEvents::Finish(Operation& operation, ucs_status_t status) {
  operation.status = status;
  done_.push_back(&operation);
}

std::vector<std::unique_ptr<Operation>> UcxEvents::TakeDone() {
  std::vector<std::unique_ptr<Operation>> taken;
  for (Operation* operation : std::exchange(done_, {})) {
    const auto found = operations_.find(operation);
    taken.push_back(std::move(found->second));
    operations_.erase(found);
  }
  return taken;
}

bool UcxEvents::Expect(PeerId peer, std::uint64_t sequence, Incoming incoming) {
  return incoming_.try_emplace({peer, sequence}, std::move(incoming)).second;
}

void UcxEvents::CancelIncoming(PeerId peer) {
  absl::erase_if(incoming_, [&](const auto& entry) {
    if (entry.first.first == peer) {
      Finish(*entry.second.operation, UCS_ERR_CANCELED);
    }
    return entry.first.first == peer;
  });
}

void UcxEvents::ConnectionRequested(ucp_conn_request_h request, void* events) {
  static_cast<UcxEvents*>(events)->requested_.push_back(request);
}

void UcxEvents::EndpointFailed(void* tag, ucp_ep_h, ucs_status_t status) {
  const auto* failed = static_cast<EndpointTag*>(tag);
  failed->events->failed_.push_back({failed->peer, status});
}

void UcxEvents::OperationDone(void* request, ucs_status_t status, void* operation) {
  auto* done = static_cast<Operation*>(operation);
  done->events->Finish(*done, status);
  ucp_request_free(request);
}

void UcxEvents::ReceiveDone(void* request, ucs_status_t status, std::size_t, void* operation) {
  OperationDone(request, status, operation);
}

const PeerId* UcxEvents::SenderOf(const ucp_am_recv_param_t& param) const {
  if ((param.recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) {
    return nullptr;
  }
  const auto found = by_endpoint_.find(param.reply_ep);
  return found == by_endpoint_.end() ? nullptr : &found->second;
}

// Returning UCS_OK tells UCX that the message is dealt with; for a rendezvous not begun, that it is
// dropped.
ucs_status_t UcxEvents::ControlArrived(void* events,
                                       const void*,
                                       std::size_t,
                                       void* data,
                                       std::size_t data_bytes,
                                       const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxEvents*>(events);
  const PeerId* sender = self->SenderOf(*param);
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  if (sender != nullptr && !rendezvous && data_bytes <= kMaxControlBytes) {
    self->arrivals_.push_back({.peer = *sender,
                               .kind = Arrival::Kind::kControl,
                               .header = std::string(static_cast<const char*>(data), data_bytes)});
  }
  return UCS_OK;
}

ucs_status_t UcxEvents::DataArrived(void* events,
                                    const void* header,
                                    std::size_t header_bytes,
                                    void* data,
                                    std::size_t data_bytes,
                                    const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxEvents*>(events);
  const PeerId* sender = self->SenderOf(*param);
  if (sender == nullptr || header_bytes > kMaxDataHeaderBytes) {
    return UCS_OK;
  }
  Arrival arrival{.peer = *sender,
                  .kind = Arrival::Kind::kData,
                  .header = std::string(static_cast<const char*>(header), header_bytes),
                  .payload_bytes = data_bytes};
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  if (rendezvous) {
    arrival.descriptor = data;
  } else {
    arrival.payload.assign(static_cast<const char*>(data), data_bytes);
  }
  self->arrivals_.push_back(std::move(arrival));
  return rendezvous ? UCS_INPROGRESS : UCS_OK;
}

// Announcements and answers are short and have no header of UCX's.
ucs_status_t UcxEvents::AnnounceArrived(void* events,
                                        const void*,
                                        std::size_t,
                                        void* data,
                                        std::size_t data_bytes,
                                        const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxEvents*>(events);
  const PeerId* sender = self->SenderOf(*param);
  if (sender == nullptr || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    return UCS_OK;
  }
  std::string_view header;
  const std::optional<Announcement> announced =
      DecodeAnnouncement({static_cast<const char*>(data), data_bytes}, header);
  if (announced && header.size() <= kMaxDataHeaderBytes) {
    self->arrivals_.push_back({.peer = *sender,
                               .kind = Arrival::Kind::kAnnounce,
                               .header = std::string(header),
                               .payload_bytes = announced->payload_bytes,
                               .sequence = announced->sequence});
  }
  return UCS_OK;
}

ucs_status_t UcxEvents::AnswerArrived(void* events,
                                      const void*,
                                      std::size_t,
                                      void* data,
                                      std::size_t data_bytes,
                                      const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxEvents*>(events);
  const PeerId* sender = self->SenderOf(*param);
  if (sender == nullptr || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    return UCS_OK;
  }
  if (const auto answer = DecodeAnswer({static_cast<const char*>(data), data_bytes})) {
    self->arrivals_.push_back({.peer = *sender,
                               .kind = Arrival::Kind::kAnswer,
                               .sequence = answer->sequence,
                               .accepted = answer->accepted});
  }
  return UCS_OK;
}

// The one callback that does more than take notes: the bytes are UCX's again when it returns, and
// another copy of them would cost what fragments save.
ucs_status_t UcxEvents::FragmentArrived(void* events,
                                        const void* header,
                                        std::size_t header_bytes,
                                        void* data,
                                        std::size_t data_bytes,
                                        const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxEvents*>(events);
  const PeerId* sender = self->SenderOf(*param);
  const std::optional<FragmentHeader> fragment =
      DecodeFragmentHeader({static_cast<const char*>(header), header_bytes});
  if (sender == nullptr || !fragment || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    return UCS_OK;
  }
  self->heard_.insert(*sender);
  const auto found = self->incoming_.find({*sender, fragment->sequence});
  if (found == self->incoming_.end()) {
    return UCS_OK;
  }
  Incoming& incoming = found->second;
  const std::size_t written = incoming.writer.written();
  if (fragment->offset != written || data_bytes > incoming.payload_bytes - written) {
    return UCS_OK;
  }
  incoming.writer.Write({static_cast<const std::byte*>(data), data_bytes});
  if (incoming.writer.written() == incoming.payload_bytes) {
    incoming.writer.SetSent(fragment->crc32c);
    self->Finish(*incoming.operation, UCS_OK);
    self->incoming_.erase(found);
  }
  return UCS_OK;
}

}  // namespace baton::ucx
