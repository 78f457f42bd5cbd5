#pragma once

namespace baton {

// From which kind of memory to which. Device memory is the backend's, host memory everybody's.
enum class CopyDirection { kHostToDevice, kDeviceToHost, kDeviceToDevice };

}  // namespace baton
