#include "kvtransfer/transfer_types.h"

namespace baton {

std::string_view ToString(DropReason reason) {
  switch (reason) {
    case DropReason::kMalformed:
      return "malformed";
    case DropReason::kUnexpected:
      return "unexpected";
    case DropReason::kUnknownHandoff:
      return "unknown_handoff";
    case DropReason::kWrongEpoch:
      return "wrong_epoch";
    case DropReason::kWrongPeer:
      return "wrong_peer";
    case DropReason::kBadBlocks:
      return "bad_blocks";
    case DropReason::kBadLayers:
      return "bad_layers";
    case DropReason::kBadLength:
      return "bad_length";
    case DropReason::kReplayed:
      return "replayed";
    case DropReason::kChecksum:
      return "checksum";
  }
  return "unknown";
}

}  // namespace baton
