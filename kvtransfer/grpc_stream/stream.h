#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "kvtransfer/wakeup.h"

namespace baton::grpc_stream {

// A message on a stream; see KvFrame.
struct Frame {
  std::string header;
  std::string payload;
  std::uint64_t more_bytes = 0;
  std::uint32_t crc32c = 0;
};

// One gRPC stream, as the transfer thread drives it: at most one read and one write at a time, each
// answered by one event. Not thread-safe: used only by the transfer thread, until it has called
// Finish; the stream then says kDone and is gone.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void Read() = 0;
  virtual void Write(Frame frame) = 0;
  // Makes what is under way end soon.
  virtual void Cancel() = 0;
  // REQUIRES: nothing is under way but a read.
  virtual void Finish() = 0;
};

struct StreamEvent {
  enum class Kind {
    kAccepted,
    kRead,       // a frame
    kReadEnded,  // the other side sends no more
    kWritten,
    kWriteFailed,
    kCancelled,  // by the other side, or with its connection
    kDone,       // last: the stream is gone
  };
  std::uint64_t stream = 0;
  Kind kind{};
  Frame frame;
  absl::Status status;     // kDone
  Stream* made = nullptr;  // kAccepted
};

// What gRPC's threads have to say to the transfer thread. Shared with the streams, which may end
// after the transport. Thread-safe.
class StreamInbox {
 public:
  explicit StreamInbox(Wakeup wakeup) : wakeup_(std::move(wakeup)) {}

  void Put(StreamEvent event) {
    {
      absl::MutexLock lock(&mutex_);
      events_.push_back(std::move(event));
    }
    wakeup_.Notify();
  }
  std::vector<StreamEvent> TakeAll() {
    if (!wakeup_.Consume()) {
      return {};
    }
    absl::MutexLock lock(&mutex_);
    return std::exchange(events_, {});
  }
  // Readable while there is something to take.
  int fd() const { return wakeup_.fd(); }

 private:
  Wakeup wakeup_;
  absl::Mutex mutex_;
  std::vector<StreamEvent> events_ ABSL_GUARDED_BY(mutex_);
};

std::uint64_t MakeStreamNumber();

}  // namespace baton::grpc_stream
