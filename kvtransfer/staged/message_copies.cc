#include "kvtransfer/staged/message_copies.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/log.h"

namespace baton::staged {
namespace {

// Cuts `parts` where one slot is full and the next begins.
template <typename Byte>
std::vector<std::vector<std::span<Byte>>> CutBySlots(std::span<const std::span<Byte>> parts,
                                                     const MessageCopies::Slots& slots) {
  std::vector<std::vector<std::span<Byte>>> cut(slots.size());
  std::size_t slot = 0;
  std::size_t room = slots[0].size();
  for (std::span<Byte> part : parts) {
    while (!part.empty()) {
      if (room == 0) {
        room = slots[++slot].size();
      }
      const std::size_t bytes = std::min(room, part.size());
      cut[slot].push_back(part.first(bytes));
      part = part.subspan(bytes);
      room -= bytes;
    }
  }
  return cut;
}

void Update(absl::Status& status, const absl::Status& copied) {
  if (status.ok() && !copied.ok()) {
    LogEvent(LogLevel::kError, "staging.copy_failed", {{"why", copied}});
  }
  status.Update(copied);
}

}  // namespace

void MessageCopies::ToHost(TransferToken token, ConstParts device, const Slots& slots) {
  Message& message = messages_[token];
  message.to_device = false;
  const auto cut = CutBySlots(device, slots);
  for (std::size_t i = 0; i < slots.size() && message.status.ok(); ++i) {
    Note(token, copier_.StartToHost(cut[i], slots[i].data()));
  }
}

void MessageCopies::ToDevice(TransferToken token, const Slots& slots, MutableParts device) {
  Message& message = messages_[token];
  message.to_device = true;
  const auto cut = CutBySlots(device, slots);
  for (std::size_t i = 0; i < slots.size() && message.status.ok(); ++i) {
    Note(token, copier_.StartToDevice(slots[i].data(), cut[i]));
  }
}

void MessageCopies::Note(TransferToken token, const absl::StatusOr<CopyId>& started) {
  Message& message = messages_.at(token);
  Update(message.status, started.status());
  if (started.ok()) {
    ++message.copies;
    copies_.push_back({.id = *started, .token = token});
  }
}

std::vector<MessageCopies::End> MessageCopies::TakeEnds() {
  std::erase_if(copies_, [&](const Copy& copy) {
    const std::optional<absl::Status> ended = copier_.Poll(copy.id);
    if (ended) {
      Message& message = messages_.at(copy.token);
      Update(message.status, *ended);
      --message.copies;
    }
    return ended.has_value();
  });
  std::vector<End> ends;
  absl::erase_if(messages_, [&](const auto& entry) {
    const auto& [token, message] = entry;
    if (message.copies == 0) {
      ends.push_back({.token = token, .to_device = message.to_device, .status = message.status});
    }
    return message.copies == 0;
  });
  return ends;
}

}  // namespace baton::staged
