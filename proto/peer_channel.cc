#include "proto/peer_channel.h"

namespace baton {
namespace {

constexpr int kFirstReconnectMs = 50;
constexpr int kSlowestReconnectMs = 500;
// Despite its name the minimum of the back-off is how long a try to connect may take: on a busy
// machine a good deal longer than the pause after one that was refused.
constexpr int kConnectMs = 1000;
// Together the second after which a peer counts as dead (DESIGN.md section 1).
constexpr int kPingAfterMs = 400;
constexpr int kPingAnswerMs = 600;

}  // namespace

grpc::ChannelArguments PeerChannelArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kSlowestReconnectMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingAfterMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingAnswerMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // however long a call is silent
  // The log probabilities of a long prompt are one message of several MiB.
  arguments.SetMaxReceiveMessageSize(-1);
  // Workers are reached directly, whatever http_proxy says.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Otherwise two clients of one address share a connection and its back-off.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return arguments;
}

}  // namespace baton
