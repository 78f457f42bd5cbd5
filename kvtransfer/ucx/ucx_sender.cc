#include "kvtransfer/ucx/ucx_sender.h"

#include <utility>
#include <vector>

#include "common/crc32c.h"
#include "common/status_macros.h"

namespace baton::ucx {
namespace {

constexpr int kFragmentsPosted = 2;  // to one peer; keeps its socket full

}  // namespace

absl::Status UcxSender::Send(Endpoint& endpoint, OutgoingMessage message, bool over_tcp) {
  Operation& operation = StartOperation(events_, endpoint, OperationKind::kSend, message.token);
  operation.header = std::move(message.header);
  operation.send_checksum = message.send_checksum;
  const bool control = message.payload.empty();
  std::size_t payload_bytes = 0;
  for (const std::span<const std::byte> part : message.payload) {
    payload_bytes += part.size();
    operation.parts.push_back(
        {.buffer = const_cast<std::byte*>(part.data()), .length = part.size()});
  }
  if (control) {
    operation.parts.push_back(
        {.buffer = operation.header.data(), .length = operation.header.size()});
  }
  if (!control && payload_bytes >= kFragmentedBytes) {
    if (over_tcp) {
      return Announce(endpoint, operation, payload_bytes);
    }
    return PostOrAbandon(endpoint, kDataId, UCP_AM_SEND_FLAG_RNDV, operation);
  }
  return PostOrAbandon(endpoint, control ? kControlId : kDataId, UCP_AM_SEND_FLAG_EAGER, operation);
}

// The operation's parts as payload, behind its header but for control messages, whose only part it
// is.
ucs_status_ptr_t UcxSender::Post(Endpoint& endpoint,
                                 unsigned id,
                                 unsigned protocol,
                                 Operation& operation) {
  const bool with_header = id == kDataId || id == kFragmentId;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_FLAGS |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  // The reply flag is what tells the receiver which endpoint this came from.
  params.flags = UCP_AM_SEND_FLAG_REPLY | protocol;
  params.cb.send = &UcxEvents::OperationDone;
  params.datatype = UCP_DATATYPE_IOV;
  params.user_data = &operation;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  return ucp_am_send_nbx(endpoint.handle, id, with_header ? operation.header.data() : nullptr,
                         with_header ? operation.header.size() : 0, operation.parts.data(),
                         operation.parts.size(), &params);
}

absl::Status UcxSender::PostOrAbandon(Endpoint& endpoint,
                                      unsigned id,
                                      unsigned protocol,
                                      Operation& operation) {
  const ucs_status_ptr_t request = Post(endpoint, id, protocol, operation);
  if (UCS_PTR_IS_ERR(request)) {
    --endpoint.outstanding;
    events_.Abandon(operation);
    return ToStatus(UCS_PTR_STATUS(request), "send to the peer");
  }
  Follow(events_, operation, request);
  return absl::OkStatus();
}

absl::Status UcxSender::Announce(Endpoint& endpoint,
                                 Operation& message,
                                 std::size_t payload_bytes) {
  const std::uint64_t sequence = endpoint.next_sequence++;
  Operation& announcement =
      StartOperation(events_, endpoint, OperationKind::kFragment, TransferToken());
  announcement.header = EncodeAnnouncement({sequence, payload_bytes}, message.header);
  announcement.parts.push_back(
      {.buffer = announcement.header.data(), .length = announcement.header.size()});
  const absl::Status posted =
      PostOrAbandon(endpoint, kAnnounceId, UCP_AM_SEND_FLAG_EAGER, announcement);
  if (!posted.ok()) {
    --endpoint.outstanding;
    events_.Abandon(message);
    return posted;
  }
  endpoint.announced[sequence] = &message;
  return absl::OkStatus();
}

// A lost answer means a lost connection, which ends the message at both sides.
void UcxSender::Answer(Endpoint& endpoint, std::uint64_t sequence, bool accepted) {
  Operation& answer = StartOperation(events_, endpoint, OperationKind::kFragment, TransferToken());
  answer.header = EncodeAnswer({sequence, accepted});
  answer.parts.push_back({.buffer = answer.header.data(), .length = answer.header.size()});
  PostOrAbandon(endpoint, kAnswerId, UCP_AM_SEND_FLAG_EAGER, answer).IgnoreError();
}

void UcxSender::StartFragments(Endpoint& endpoint, const Arrival& answer) {
  const auto announced = endpoint.announced.find(answer.sequence);
  if (announced == endpoint.announced.end()) {
    return;
  }
  Operation& message = *announced->second;
  endpoint.announced.erase(announced);
  if (!answer.accepted) {
    events_.Finish(message, UCS_OK);
    return;
  }
  message.status = UCS_OK;
  endpoint.sending.push_back({.message = &message,
                              .cutter = FragmentCutter(message.parts),
                              .next = {.sequence = answer.sequence}});
  PostFragments(endpoint);
}

// Few at a time: what waits inside UCX has left the cache when its turn comes, and control messages
// wait behind it.
void UcxSender::PostFragments(Endpoint& endpoint) {
  while (!endpoint.sending.empty() && endpoint.fragments_posted < kFragmentsPosted) {
    Endpoint::Sending& sending = endpoint.sending.front();
    Operation& message = *sending.message;
    Operation& fragment =
        StartOperation(events_, endpoint, OperationKind::kFragment, TransferToken());
    fragment.message = &message;
    fragment.parts = sending.cutter.Next();
    std::size_t bytes = 0;
    for (const ucp_dt_iov_t& part : fragment.parts) {
      bytes += part.length;
      if (message.send_checksum) {
        sending.next.crc32c =
            Crc32c({static_cast<const char*>(part.buffer), part.length}, sending.next.crc32c);
      }
    }
    fragment.header = EncodeFragmentHeader(sending.next);
    sending.next.offset += bytes;
    ++message.fragments_posted;
    ++endpoint.fragments_posted;
    if (sending.cutter.done()) {
      message.all_posted = true;
      endpoint.sending.pop_front();
    }
    Follow(events_, fragment, Post(endpoint, kFragmentId, UCP_AM_SEND_FLAG_EAGER, fragment));
  }
}

// The message is done with its last fragment, and failed if any of them has.
void UcxSender::FragmentSent(Endpoint& endpoint, const Operation& fragment) {
  if (fragment.message == nullptr) {
    return;
  }
  --endpoint.fragments_posted;
  Operation& message = *fragment.message;
  --message.fragments_posted;
  if (fragment.status != UCS_OK) {
    message.status = fragment.status;
    GiveUp(endpoint, message);
  }
  if (message.all_posted && message.fragments_posted == 0) {
    events_.Finish(message, message.status);
  }
  if (!endpoint.closing) {
    PostFragments(endpoint);
  }
}

// What has not been posted of the message never will be.
void UcxSender::GiveUp(Endpoint& endpoint, Operation& message) {
  message.all_posted = true;
  std::erase_if(endpoint.sending,
                [&](const Endpoint::Sending& sending) { return sending.message == &message; });
}

void UcxSender::Abandon(Endpoint& endpoint) {
  for (const auto& [sequence, message] : endpoint.announced) {
    events_.Finish(*message, UCS_ERR_CANCELED);
  }
  endpoint.announced.clear();
  for (const Endpoint::Sending& sending : endpoint.sending) {
    Operation& message = *sending.message;
    message.all_posted = true;
    message.status = UCS_ERR_CANCELED;
    if (message.fragments_posted == 0) {
      events_.Finish(message, UCS_ERR_CANCELED);
    }
  }
  endpoint.sending.clear();
}

}  // namespace baton::ucx
