#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "kvtransfer/staged/staging_copier.h"
#include "kvtransfer/transport.h"

namespace baton::staged {

// Copies of whole messages between device memory and slots: one copy for each slot, one end for
// each message.
//
// Not thread-safe: used only by the transfer thread.
class MessageCopies {
 public:
  using Slots = std::vector<std::span<std::byte>>;
  struct End {
    TransferToken token;
    bool to_device = false;
    absl::Status status;  // OK, or of the first copy that failed
  };

  // `copier` outlives this.
  explicit MessageCopies(StagingCopier& copier) : copier_(copier) {}

  // Start the copies of a message; its end comes by TakeEnds, also when they could not be started.
  // REQUIRES: no other message with this token; parts and slots of the same length together.
  void ToHost(TransferToken token, ConstParts device, const Slots& slots);
  void ToDevice(TransferToken token, const Slots& slots, MutableParts device);

  // Messages none of whose copies is under way any more.
  std::vector<End> TakeEnds();

  bool empty() const { return messages_.empty(); }
  int copies() const { return static_cast<int>(copies_.size()); }

 private:
  struct Message {
    bool to_device = false;
    int copies = 0;       // under way
    absl::Status status;  // of those that have ended
  };
  struct Copy {
    CopyId id;
    TransferToken token;
  };

  void Note(TransferToken token, const absl::StatusOr<CopyId>& started);

  StagingCopier& copier_;
  absl::flat_hash_map<TransferToken, Message> messages_;
  std::vector<Copy> copies_;
};

}  // namespace baton::staged
