#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/worker.pb.h"
#include "worker/kv_event_log.h"
#include "worker/report_feed.h"

namespace baton {

// The gRPC call that carries the reports of one stream.
class ReportCall {
 public:
  virtual ~ReportCall() = default;
  // Begins to write `report`, which stays as it is until ReportStream::OnWritten is called; not
  // called again before that. On the hub's thread, which must not be held up.
  virtual void StartReport(const v1::WorkerReport& report) = 0;
  // Exactly once, last, with no write under way: the stream is over. On any thread.
  virtual void OnStreamEnd() = 0;
};

class ReportHub;

// One router's stream of reports. Thread-safe.
class ReportStream {
 public:
  // From the call: the report has been written, or the connection broke.
  void OnWritten();
  // From the call: the router has missed something.
  void AskSnapshot();
  // No further report: OnStreamEnd is called when the write under way has ended, or at once.
  void End();

 private:
  friend class ReportHub;
  ReportStream(ReportHub& hub, ReportCall& call, ReportFeed feed);

  // Begins the next write if one is due. What the hub has to wait for.
  struct Outlook {
    enum class State { kOver, kWriting, kBehind, kWaiting };  // the last two: of the log's changes
    State state;
    TimePoint due;
  };
  Outlook Advance(TimePoint now);
  void AskDescription();
  // False when the description that was asked for is not on its way at `deadline`.
  bool AwaitDescription(TimePoint deadline);
  bool HasDescribed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ending_ || (!description_asked_ && !description_flies_);
  }

  ReportHub& hub_;
  ReportCall& call_;  // used until its OnStreamEnd

  absl::Mutex mutex_;
  ReportFeed feed_ ABSL_GUARDED_BY(mutex_);
  v1::WorkerReport report_;  // owned by the write under way
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool description_asked_ ABSL_GUARDED_BY(mutex_) = false;  // by AskDescription
  bool description_flies_ ABSL_GUARDED_BY(mutex_) = false;  // one that was asked for
};

// Tells every router that listens what this worker is, how busy it is and what its prefix cache
// holds, whichever side has opened the stream.
//
// One thread writes for all streams, each at its own pace: one write is under way for each.
//
// Thread-safe.
class ReportHub {
 public:
  // `describe` is called on the hub's thread; it and `log` outlive the hub.
  ReportHub(std::function<v1::WorkerDescription()> describe,
            KvEventLog& log,
            const ReportTimes& times = {});
  // REQUIRES: every stream is over, or will never call the hub again.
  ~ReportHub();
  ReportHub(const ReportHub&) = delete;
  ReportHub& operator=(const ReportHub&) = delete;

  // `call` lives until its OnStreamEnd. Shared by the call and the hub, either of which may be the
  // last to touch it.
  std::shared_ptr<ReportStream> Open(ReportCall& call);

  // Sends a description on every stream now, and returns when all are written, at the latest after
  // `bound`. Not from a ReportCall.
  void Describe(Duration bound);

  // Ends every stream, and those that are opened later at once.
  void EndStreams();

 private:
  friend class ReportStream;

  void Wake();
  void Run();

  const std::function<v1::WorkerDescription()> describe_;
  KvEventLog& log_;
  const ReportTimes times_;

  absl::Mutex mutex_;
  std::vector<std::shared_ptr<ReportStream>> streams_ ABSL_GUARDED_BY(mutex_);  // see Open
  bool news_ ABSL_GUARDED_BY(mutex_) = false;  // something for the thread to look at
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace baton
