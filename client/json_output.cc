#include "client/json_output.h"

#include <chrono>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/sha256.h"
#include "common/utf8.h"
#include "google/protobuf/duration.pb.h"
#include "proto/status_conversion.h"

namespace baton {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::ordered_json;

bool IsDuration(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
         field.message_type() == google::protobuf::Duration::descriptor();
}

double Seconds(const Message& message) {
  // A round trip through bytes, so that a dynamic message would do too.
  google::protobuf::Duration duration;
  duration.ParseFromString(message.SerializeAsString());
  return std::chrono::duration<double>(FromProtoDuration(duration)).count();
}

ordered_json TextValue(const FieldDescriptor& field, const std::string& value) {
  const bool is_name =
      absl::EndsWith(field.name(), "_fingerprint") || absl::EndsWith(field.name(), "_id");
  if (field.type() == FieldDescriptor::TYPE_BYTES && is_name) {
    return ToHex(value);
  }
  return ReplaceInvalidUtf8(value);
}

ordered_json EnumValue(const FieldDescriptor& field, int number) {
  const auto* value = field.enum_type()->FindValueByNumber(number);
  return value == nullptr ? ordered_json(number) : ordered_json(value->name());
}

ordered_json MessageValue(const FieldDescriptor& field, const Message& message) {
  return IsDuration(field) ? ordered_json(Seconds(message)) : ToJson(message);
}

ordered_json SingleValue(const Message& message, const FieldDescriptor& field) {
  const Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.GetUInt64(message, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.GetFloat(message, &field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumValue(field, reflection.GetEnumValue(message, &field));
    case FieldDescriptor::CPPTYPE_STRING:
      return TextValue(field, reflection.GetString(message, &field));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageValue(field, reflection.GetMessage(message, &field));
  }
  return nullptr;
}

ordered_json RepeatedValue(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetRepeatedInt32(message, &field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.GetRepeatedInt64(message, &field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.GetRepeatedUInt32(message, &field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.GetRepeatedUInt64(message, &field, index);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.GetRepeatedDouble(message, &field, index);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.GetRepeatedFloat(message, &field, index);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetRepeatedBool(message, &field, index);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumValue(field, reflection.GetRepeatedEnumValue(message, &field, index));
    case FieldDescriptor::CPPTYPE_STRING:
      return TextValue(field, reflection.GetRepeatedString(message, &field, index));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageValue(field, reflection.GetRepeatedMessage(message, &field, index));
  }
  return nullptr;
}

// In proto a map is a list of entries with the fields 1, key, and 2, value.
ordered_json MapValue(const Message& message, const FieldDescriptor& field) {
  const Reflection& reflection = *message.GetReflection();
  ordered_json object = ordered_json::object();
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    const Message& entry = reflection.GetRepeatedMessage(message, &field, i);
    const ordered_json key = SingleValue(entry, *field.message_type()->FindFieldByNumber(1));
    const std::string name = key.is_string() ? key.get<std::string>() : key.dump();
    object[name] = SingleValue(entry, *field.message_type()->FindFieldByNumber(2));
  }
  return object;
}

}  // namespace

ordered_json ToJson(const Message& message) {
  const Reflection& reflection = *message.GetReflection();
  const google::protobuf::Descriptor& descriptor = *message.GetDescriptor();
  ordered_json object = ordered_json::object();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    if (field.is_map()) {
      object[field.name()] = MapValue(message, field);
    } else if (field.is_repeated()) {
      ordered_json list = ordered_json::array();
      for (int index = 0; index < reflection.FieldSize(message, &field); ++index) {
        list.push_back(RepeatedValue(message, field, index));
      }
      object[field.name()] = std::move(list);
    } else if (!field.has_presence() || IsDuration(field) || reflection.HasField(message, &field)) {
      object[field.name()] = SingleValue(message, field);
    }
  }
  return object;
}

std::string DumpJson(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace baton
