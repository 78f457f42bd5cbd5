#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/file.h"

namespace baton {

// A connection to 127.0.0.1 that gives up on a peer that is silent for ten seconds.
inline absl::StatusOr<UniqueFd> ConnectLocally(const std::string& address) {
  int port = 0;
  if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) {
    return absl::InvalidArgumentError(absl::StrCat("no port in ", address));
  }
  UniqueFd connection(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience{.tv_sec = 10, .tv_usec = 0};
  setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<std::uint16_t>(port));
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(connection.get(), reinterpret_cast<const sockaddr*>(&peer), sizeof peer) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("connect to ", address));
  }
  return connection;
}

// The whole answer to GET `path` at a local server: status line, headers, body.
inline absl::StatusOr<std::string> HttpGet(const std::string& address, const std::string& path) {
  absl::StatusOr<UniqueFd> connection = ConnectLocally(address);
  if (!connection.ok()) {
    return connection.status();
  }
  const std::string request =
      absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: ", address, "\r\nConnection: close\r\n\r\n");
  if (send(connection->get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return absl::ErrnoToStatus(errno, "send");
  }
  std::string answer;
  char part[4096];
  ssize_t count = 0;
  while ((count = recv(connection->get(), part, sizeof part, 0)) > 0) {
    answer.append(part, static_cast<std::size_t>(count));
  }
  if (count < 0) {
    return absl::ErrnoToStatus(errno, "receive");
  }
  return answer;
}

// Every sample of a Prometheus endpoint, by its name and labels as they are written.
inline absl::StatusOr<std::map<std::string, double>> Scrape(const std::string& address) {
  absl::StatusOr<std::string> answer = HttpGet(address, "/metrics");
  if (!answer.ok()) {
    return answer.status();
  }
  const std::size_t body = answer->find("\r\n\r\n");
  if (answer->rfind("HTTP/1.1 200 ", 0) != 0 || body == std::string::npos) {
    return absl::UnknownError(*answer);
  }
  std::map<std::string, double> samples;
  const std::vector<std::string> lines =
      absl::StrSplit(answer->substr(body + 4), '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    const std::size_t space = line.rfind(' ');
    double value = 0;
    if (line[0] == '#') {
      continue;
    }
    if (space == std::string::npos || !absl::SimpleAtod(line.substr(space + 1), &value)) {
      return absl::UnknownError(absl::StrCat("not a sample: ", line));
    }
    samples[line.substr(0, space)] = value;
  }
  return samples;
}

}  // namespace baton
