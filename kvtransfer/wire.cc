#include "kvtransfer/wire.h"

#include <algorithm>
#include <concepts>
#include <optional>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/byte_io.h"
#include "common/check.h"
#include "kvtransfer/transport.h"

namespace baton::wire {
namespace {

constexpr std::string_view kMagic = "BKVT";

// Writes and reads share one list of fields for each message, `Fields` below, so they cannot
// disagree.
class FieldWriter {
 public:
  void operator()(std::integral auto value) { out_.Put(value); }
  template <typename Tag>
  void operator()(const RandomId<Tag>& id) {
    out_.PutBytes(id.AsBytes());
  }
  void operator()(const Digest& digest) {
    out_.PutBytes({reinterpret_cast<const char*>(digest.data()), digest.size()});
  }
  void operator()(const BlockRun& run) {
    out_.Put(run.first);
    out_.Put(run.count);
    out_.Put(run.first_layer);
    out_.Put(run.layer_count);
  }
  void operator()(const PlacedBlock& block) {
    out_.Put(block.source);
    out_.Put(block.place);
  }
  void operator()(const Door& door) {
    out_.Put(static_cast<std::uint16_t>(door.kind));
    (*this)(door.description, kMaxDoorBytes);
  }
  void operator()(const std::string& text, std::uint32_t limit) {
    BATON_CHECK(text.size() <= limit);
    out_.Put(static_cast<std::uint32_t>(text.size()));
    out_.PutBytes(text);
  }
  template <typename T>
  void operator()(const std::vector<T>& values, std::uint32_t limit) {
    BATON_CHECK(values.size() <= limit);
    out_.Put(static_cast<std::uint32_t>(values.size()));
    for (const T& value : values) {
      (*this)(value);
    }
  }

  const std::string& bytes() const { return out_.bytes(); }

 private:
  ByteWriter out_;
};

// After the first thing that does not fit, `ok()` is false and the rest is left as it was.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : in_(bytes) {}

  template <std::integral T>
  void operator()(T& value) {
    Store(in_.Get<T>(), value);
  }
  template <typename Tag>
  void operator()(RandomId<Tag>& id) {
    if (const std::optional<std::string_view> raw = in_.GetBytes(id.bytes.size())) {
      id = *RandomId<Tag>::FromBytes(*raw);
    } else {
      ok_ = false;
    }
  }
  void operator()(Digest& digest) {
    if (const std::optional<std::string_view> raw = in_.GetBytes(digest.size())) {
      std::copy(raw->begin(), raw->end(), digest.begin());
    } else {
      ok_ = false;
    }
  }
  void operator()(BlockRun& run) {
    (*this)(run.first);
    (*this)(run.count);
    (*this)(run.first_layer);
    (*this)(run.layer_count);
  }
  void operator()(PlacedBlock& block) {
    (*this)(block.source);
    (*this)(block.place);
  }
  void operator()(Door& door) {
    std::uint16_t kind = 0;
    (*this)(kind);
    door.kind = static_cast<TransportKind>(kind);
    (*this)(door.description, kMaxDoorBytes);
  }
  void operator()(std::string& text, std::uint32_t limit) {
    const std::uint32_t count = Count(limit);
    if (const std::optional<std::string_view> raw = in_.GetBytes(count)) {
      text = std::string(*raw);
    } else {
      ok_ = false;
    }
  }
  template <typename T>
  void operator()(std::vector<T>& values, std::uint32_t limit) {
    const std::uint32_t count = Count(limit);
    for (std::uint32_t i = 0; i < count && ok_; ++i) {
      T value{};
      (*this)(value);
      values.push_back(value);
    }
  }

  bool ok() const { return ok_; }
  bool AtEnd() const { return in_.remaining() == 0; }

 private:
  template <typename T>
  void Store(std::optional<T> read, T& value) {
    ok_ = ok_ && read.has_value();
    value = ok_ ? *read : value;
  }
  std::uint32_t Count(std::uint32_t limit) {
    std::uint32_t count = 0;
    (*this)(count);
    ok_ = ok_ && count <= limit;
    return ok_ ? count : 0;
  }

  ByteReader in_;
  bool ok_ = true;
};

template <typename M, typename T>
concept Is = std::same_as<std::remove_const_t<M>, T>;

template <typename Visitor, Is<Hello> M>
void Fields(Visitor& field, M& message) {
  field(message.instance);
  field(message.layout_fingerprint);
}

template <typename Visitor, Is<Welcome> M>
void Fields(Visitor& field, M& message) {
  field(message.instance);
  field(message.layout_fingerprint);
  field(message.pool_blocks);
  field(message.messages);
  field(message.doors, kMaxDoors);
}

template <typename Visitor, Is<Fetch> M>
void Fields(Visitor& field, M& message) {
  field(message.handoff);
  field(message.epoch);
  field(message.round);
  field(message.credit_bytes);
  field(message.reads);
  field(message.blocks, kMaxBlockRuns);
}

template <typename Visitor, typename M>
requires Is<M, Data> || Is<M, Ready>
void Fields(Visitor& field, M& message) {
  field(message.handoff);
  field(message.epoch);
  field(message.round);
  field(message.sequence);
  field(message.first_layer);
  field(message.layer_count);
  field(message.crc32c);
  if constexpr (Is<M, Data>) {
    field(message.checksum_follows);
  }
  field(message.blocks, kMaxDataBlocks);
}

template <typename Visitor, Is<Complete> M>
void Fields(Visitor& field, M& message) {
  field(message.handoff);
  field(message.epoch);
  field(message.round);
  field(message.messages);
  field(message.bytes);
}

template <typename Visitor, Is<Ack> M>
void Fields(Visitor& field, M& message) {
  field(message.handoff);
  field(message.epoch);
  field(message.confirm);
}

template <typename Visitor, Is<Released> M>
void Fields(Visitor& field, M& message) {
  field(message.handoff);
  field(message.epoch);
}

template <typename Visitor, Is<Cancel> M>
void Fields(Visitor& field, M& message) {
  field(message.handoff);
  field(message.epoch);
  field(message.code);
}

template <typename Visitor, Is<Error> M>
void Fields(Visitor& field, M& message) {
  field(message.handoff);
  field(message.epoch);
  field(message.code);
  field(message.text, kMaxErrorText);
}

template <typename Visitor, Is<Ping> M>
void Fields(Visitor& field, M& message) {
  field(message.sequence);
  field(message.renewed, kMaxRenewals);
}

template <typename Visitor, Is<Pong> M>
void Fields(Visitor& field, M& message) {
  field(message.sequence);
}

template <typename M>
absl::StatusOr<Message> DecodeBody(std::string_view body) {
  M message;
  FieldReader reader(body);
  Fields(reader, message);
  if (!reader.ok() || !reader.AtEnd()) {
    return absl::InvalidArgumentError(absl::StrCat("message of type ", static_cast<int>(M::kType),
                                                   " has ",
                                                   reader.ok() ? "too many bytes" : "bad fields"));
  }
  return Message(std::move(message));
}

}  // namespace

std::string Encode(const Message& message) {
  return std::visit(
      [](const auto& typed) {
        FieldWriter body;
        Fields(body, typed);
        ByteWriter out;
        out.PutBytes(kMagic);
        out.Put(kVersion);
        out.Put(static_cast<std::uint16_t>(typed.kType));
        out.Put(static_cast<std::uint32_t>(body.bytes().size()));
        out.PutBytes(body.bytes());
        return std::move(out).Take();
      },
      message);
}

absl::StatusOr<Message> Decode(std::string_view bytes) {
  ByteReader frame(bytes);
  const std::optional<std::string_view> magic = frame.GetBytes(kMagic.size());
  const std::optional<std::uint16_t> version = frame.Get<std::uint16_t>();
  const std::optional<std::uint16_t> type = frame.Get<std::uint16_t>();
  const std::optional<std::uint32_t> length = frame.Get<std::uint32_t>();
  if (!length || *magic != kMagic) {
    return absl::InvalidArgumentError("not a message of the transfer protocol");
  }
  if (*version != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("transfer protocol: ours ", kVersion, ", theirs ", *version));
  }
  if (*length != frame.remaining()) {
    return absl::InvalidArgumentError(
        absl::StrCat("message announces ", *length, " bytes and has ", frame.remaining()));
  }
  const std::string_view body = bytes.substr(kFrameBytes);
  switch (static_cast<MessageType>(*type)) {
    case MessageType::kHello:
      return DecodeBody<Hello>(body);
    case MessageType::kWelcome:
      return DecodeBody<Welcome>(body);
    case MessageType::kFetch:
      return DecodeBody<Fetch>(body);
    case MessageType::kData:
      return DecodeBody<Data>(body);
    case MessageType::kComplete:
      return DecodeBody<Complete>(body);
    case MessageType::kAck:
      return DecodeBody<Ack>(body);
    case MessageType::kCancel:
      return DecodeBody<Cancel>(body);
    case MessageType::kError:
      return DecodeBody<Error>(body);
    case MessageType::kPing:
      return DecodeBody<Ping>(body);
    case MessageType::kPong:
      return DecodeBody<Pong>(body);
    case MessageType::kReady:
      return DecodeBody<Ready>(body);
    case MessageType::kReleased:
      return DecodeBody<Released>(body);
  }
  return absl::InvalidArgumentError(absl::StrCat("message of unknown type ", *type));
}

absl::Status ToStatus(const Error& error) {
  const bool known = error.code > 0 &&
                     error.code <= static_cast<std::uint16_t>(absl::StatusCode::kUnauthenticated);
  return {known ? static_cast<absl::StatusCode>(error.code) : absl::StatusCode::kUnknown,
          absl::StrCat("from the peer: ", error.text)};
}

}  // namespace baton::wire
