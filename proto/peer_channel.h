#pragma once

#include <grpcpp/support/channel_arguments.h>

namespace baton {

// How one Baton process keeps a gRPC connection to another (not to clients): a peer that is back at
// its address is found within half a second; one that is stopped, or cut off without a word, is
// noticed within a second (pings that its HTTP/2 does not answer), and its calls end with
// UNAVAILABLE. The kernel of a stopped process goes on acknowledging bytes, so nothing else would
// notice it.
grpc::ChannelArguments PeerChannelArguments();

}  // namespace baton
