#pragma once

namespace baton {

// Keeps gRPC and its callback threads up until the process ends. Call before the first channel or
// server; any number of times, not on a gRPC thread.
//
// gRPC 1.51 stops the callback threads with the last channel or server that used them. When that is
// released on one of these threads, at the end of a callback, the thread frees the queue that it
// stands on: a double free (seen under the address sanitizer). And the shutdown of the library
// itself now and then waits ten seconds for a poller.
void KeepGrpcRunning();

}  // namespace baton
