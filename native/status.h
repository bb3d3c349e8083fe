// How a round of a tensor ended, as seen by a worker. The numbers travel in `failed` frames and into Python.
#pragma once

#include <cstdint>

namespace byteps {

enum class Status : uint16_t {
  pending = 0,
  ok = 1,
  link_lost = 2,  // the connection to server `peer` broke
  departed = 3,   // rank `peer` shut down in order; it will not contribute
  retracted = 4,  // ranks disagreed about this tensor
  closed = 5,     // this session was shut down, or failed as a whole
};

}  // namespace byteps
