#pragma once

#include <memory>

#include "kvtransfer/transport.h"

namespace baton::inproc {

class Hub;

// A network inside one process: transports of one hub can reach each other by address ("inproc:1",
// ...). Shared by every transport made from it, in whatever order their threads end.
std::shared_ptr<Hub> MakeHub();

TransportFactory MakeTransport(std::shared_ptr<Hub> hub);

}  // namespace baton::inproc
