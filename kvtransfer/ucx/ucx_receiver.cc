#include "kvtransfer/ucx/ucx_receiver.h"

#include <cstring>
#include <utility>

namespace baton::ucx {

void UcxReceiver::Receive(Endpoint& endpoint, Arrival arrival) {
  const ReceivePlan plan = handler_.OnData(arrival.peer, arrival.header, arrival.payload_bytes);
  if (!plan.accept || endpoint.closing) {
    Release(arrival);
    if (arrival.kind == Arrival::Kind::kAnnounce && !endpoint.closing) {
      sender_.Answer(endpoint, arrival.sequence, /*accepted=*/false);
    }
    if (plan.accept) {
      handler_.OnReceived(arrival.peer, plan.token, endpoint.why);
    }
  } else if (plan.later) {
    arrival.copied = plan.copied;
    endpoint.waiting[plan.token] = std::move(arrival);
  } else {
    Fill(endpoint, arrival, plan.token, plan.destinations, plan.copied);
  }
}

void UcxReceiver::Place(Endpoint& endpoint,
                        TransferToken token,
                        std::span<const std::span<std::byte>> destinations) {
  if (const auto waiting = endpoint.waiting.find(token); waiting != endpoint.waiting.end()) {
    const Arrival arrival = std::move(waiting->second);
    endpoint.waiting.erase(waiting);
    Fill(endpoint, arrival, token, destinations, arrival.copied);
  }
}

void UcxReceiver::Release(const Arrival& arrival) {
  if (arrival.descriptor != nullptr) {
    ucp_am_data_release(worker_, arrival.descriptor);
  }
}

void UcxReceiver::Fill(Endpoint& endpoint,
                       const Arrival& arrival,
                       TransferToken token,
                       std::span<const std::span<std::byte>> destinations,
                       std::shared_ptr<CopiedChecksum> copied) {
  Operation& operation = StartOperation(events_, endpoint, OperationKind::kReceive, token);
  if (arrival.kind == Arrival::Kind::kAnnounce) {
    const bool expected = events_.Expect(
        endpoint.tag.peer, arrival.sequence,
        {.operation = &operation,
         .payload_bytes = arrival.payload_bytes,
         .writer = ScatterWriter({destinations.begin(), destinations.end()}, std::move(copied))});
    if (expected) {
      sender_.Answer(endpoint, arrival.sequence, /*accepted=*/true);
    } else {
      events_.Finish(operation, UCS_ERR_INVALID_PARAM);
    }
    return;
  }
  if (arrival.descriptor == nullptr) {
    const char* from = arrival.payload.data();
    for (const std::span<std::byte> destination : destinations) {
      std::memcpy(destination.data(), from, destination.size());
      from += destination.size();
    }
    events_.Finish(operation, UCS_OK);
    return;
  }
  for (const std::span<std::byte> destination : destinations) {
    operation.parts.push_back({.buffer = destination.data(), .length = destination.size()});
  }
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_MEMORY_TYPE |
                        UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.cb.recv_am = &UcxEvents::ReceiveDone;
  params.datatype = UCP_DATATYPE_IOV;
  params.user_data = &operation;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  const ucs_status_ptr_t request = ucp_am_recv_data_nbx(
      worker_, arrival.descriptor, operation.parts.data(), operation.parts.size(), &params);
  Follow(events_, operation, request);
}

void UcxReceiver::Abandon(Endpoint& endpoint) {
  for (const auto& [token, arrival] : endpoint.waiting) {
    Release(arrival);
    events_.Finish(StartOperation(events_, endpoint, OperationKind::kReceive, token),
                   UCS_ERR_CANCELED);
  }
  endpoint.waiting.clear();
  events_.CancelIncoming(endpoint.tag.peer);
}

}  // namespace baton::ucx
