#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>

namespace baton {

// A message as `--json` shows it: fields by their proto names in the order of their declaration,
// default values written out, enums by name, durations as seconds. Bytes become text with U+FFFD
// for what is not UTF-8, except names made of bytes (fields that end in _fingerprint or _id), which
// become hexadecimal. Absent `optional` fields and absent messages other than durations are left
// out.
nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

// On one line, without a newline.
std::string DumpJson(const nlohmann::ordered_json& json);

}  // namespace baton
