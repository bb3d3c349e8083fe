// How many bytes a worker may have in flight when nobody says: enough to keep its links full, and little
// more, since an urgent tensor waits behind what is in flight. After the window of BBR (Cardwell et al., ACM
// Queue 2016): the best rate at which credit came back lately, times the shortest time for which any was
// held, with some slack so that a rate that could be higher shows. Sans-IO: the caller has the clock.
#pragma once

#include <cstdint>
#include <limits>

#include "egress.h"

namespace byteps {

class CreditWindow {
 public:
  // `busy_servers`: how many servers one worker must have partitions at to keep its link full. All workers
  // push a partition at about the same time, so that its server takes as many times as long as there are
  // workers, once for the pushes and once for the results.
  explicit CreditWindow(uint32_t busy_servers = 1) : busy_servers_(busy_servers) {}

  static constexpr uint64_t kMaxBytes = 16 * 1024 * 1024;
  static constexpr uint64_t kMinBytes = 64 * 1024;

  // The first byte of a partition is handed over. `idle`: nothing else holds credit.
  void begin(uint64_t partition_bytes, bool idle, Clock::time_point now);
  // A partition gives its credit back after holding it for so long.
  void give_back(uint64_t bytes, Clock::duration held, Clock::time_point now);

  uint64_t bytes() const { return bytes_; }
  // How long so many bytes of credit take to come back, at the best rate lately; 0 before that is known.
  Clock::duration turn(uint64_t credit_bytes) const;

 private:
  void adapt();

  const uint64_t busy_servers_;
  uint64_t bytes_ = kMaxBytes;
  double rate_ = 0;  // bytes per second
  uint64_t window_bytes_ = 0;
  Clock::time_point window_start_{};
  // Extremes in this period and in the one before: older ones are forgotten, with the link as it was then and
  // the tensors that were sent.
  struct Extremes {
    double shortest_s = std::numeric_limits<double>::infinity();  // for which credit was held
    uint64_t largest_bytes = 0;                                   // of a partition
  };
  Extremes now_, before_;
  Clock::time_point period_start_{};
};

}  // namespace byteps
