#include "tests/support/reserved_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "common/check.h"

namespace baton {

ReservedPort::ReservedPort() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  BATON_CHECK(socket_.ok());
  const int yes = 1;
  BATON_CHECK(setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  BATON_CHECK(bind(socket_.get(), generic, length) == 0);
  BATON_CHECK(getsockname(socket_.get(), generic, &length) == 0);
  number_ = ntohs(address.sin_port);
}

}  // namespace baton
