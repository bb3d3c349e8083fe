// How far ahead of the network a sender may run. Bytes that wait in the kernel, in a socket or in the
// device's queue, cannot be overtaken by urgent ones, so their number is budgeted over all links of a sender
// together: with one limit per socket, eight slow sockets would hold eight times as much in front of an
// urgent tensor. Queues beyond this host are left to TCP: who holds back from them loses his share to others.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace byteps {

using Clock = std::chrono::steady_clock;

class Egress {
 public:
  // Bytes per frame: 1.5 ms of the measured rate, in whole cells, unless somebody says.
  size_t chunk_bytes() const { return fixed_chunk_bytes_ != 0 ? fixed_chunk_bytes_ : chunk_bytes_; }
  void set_chunk(uint64_t bytes);  // rounded to whole cells; 0: by the measured rate
  // Bytes in this host over all links: 1 ms of the measured rate, not counting the last chunk.
  size_t budget_bytes() const { return budget_bytes_; }
  // Where links hold bytes back, one with fewer in this host than this may have more, so that none idles.
  size_t low_water_bytes(size_t links) const;

  // Called whenever the budget is found exhausted, or no longer exhausted. `drained_bytes` is what has left
  // this host since the start. The rate is measured only while the sender is backlogged without a break.
  void observe(bool backlogged, uint64_t drained_bytes, Clock::time_point now);

  double bytes_per_second() const { return rate_; }

 private:
  void adapt();

  size_t chunk_bytes_ = 256 * 1024;
  size_t fixed_chunk_bytes_ = 0;
  size_t budget_bytes_ = 1024 * 1024;
  double rate_ = 0;
  bool measuring_ = false;
  uint64_t window_bytes_ = 0;
  Clock::time_point window_start_{};
};

}  // namespace byteps
