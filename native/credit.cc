#include "credit.h"

#include <algorithm>

namespace byteps {
namespace {

constexpr double kSlackSeconds = 0.005;
constexpr double kWindowSeconds = 0.020;
constexpr double kPeriodSeconds = 10.0;
constexpr std::chrono::duration<double> kLongestTurn{0.1};
constexpr double kForgetting = 0.98;  // of the best rate, per window: a slower link shows within a second
constexpr uint64_t kPartitionsPerServer = 3;  // one pushed, one summed, one coming back

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

void CreditWindow::begin(uint64_t partition_bytes, bool idle, Clock::time_point now) {
  now_.largest_bytes = std::max(now_.largest_bytes, partition_bytes);
  if (!idle) return;
  window_bytes_ = 0;
  window_start_ = now;
}

void CreditWindow::give_back(uint64_t bytes, Clock::duration held, Clock::time_point now) {
  if (seconds(now - period_start_) > kPeriodSeconds) {
    period_start_ = now;
    before_ = now_;
    now_ = {};
  }
  now_.shortest_s = std::min(now_.shortest_s, seconds(held));
  now_.largest_bytes = std::max(now_.largest_bytes, bytes);
  window_bytes_ += bytes;
  const double window_s = seconds(now - window_start_);
  if (window_s < kWindowSeconds) return;
  rate_ = std::max(static_cast<double>(window_bytes_) / window_s, rate_ * kForgetting);
  window_bytes_ = 0;
  window_start_ = now;
  adapt();
}

Clock::duration CreditWindow::turn(uint64_t credit_bytes) const {
  const std::chrono::duration<double> time(rate_ > 0 ? static_cast<double>(credit_bytes) / rate_ : 0.0);
  return std::chrono::duration_cast<Clock::duration>(std::min(time, kLongestTurn));
}

void CreditWindow::adapt() {
  const double round_s = std::min(now_.shortest_s, before_.shortest_s) + kSlackSeconds;
  const uint64_t largest = std::max(now_.largest_bytes, before_.largest_bytes);
  const uint64_t least =
      std::min(std::max(kMinBytes, kPartitionsPerServer * busy_servers_ * largest), kMaxBytes);
  bytes_ = std::clamp(static_cast<uint64_t>(rate_ * round_s), least, kMaxBytes);
}

}  // namespace byteps
