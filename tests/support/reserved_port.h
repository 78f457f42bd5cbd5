#pragma once

#include "common/file.h"

namespace baton {

// A port of 127.0.0.1 that no other program is given while the object lives, for a server that ends
// and comes back at the same address: the object is bound to it too, without listening, which the
// reuse of addresses permits.
class ReservedPort {
 public:
  ReservedPort();
  int number() const { return number_; }

 private:
  UniqueFd socket_;
  int number_ = 0;
};

}  // namespace baton
