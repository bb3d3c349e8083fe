#include "egress.h"

#include <algorithm>

#include "wire.h"

namespace byteps {
namespace {

constexpr double kChunkSeconds = 1.5e-3;
constexpr double kBudgetSeconds = 1e-3;
constexpr double kWindowSeconds = 5e-3;  // long enough that one late wake-up does not look like a slow link
constexpr double kNewWeight = 0.3;       // of a new measurement in the moving average
constexpr size_t kMinBudgetBytes = 16 * 1024;
constexpr size_t kMaxBudgetBytes = 4 * 1024 * 1024;
constexpr size_t kMinLowWaterBytes = 4 * 1024;
constexpr size_t kMaxLowWaterBytes = 256 * 1024;

size_t whole_cells(uint64_t cells) { return std::clamp<uint64_t>(cells, 1, kMaxChunkCells) * kCellBytes; }

}  // namespace

size_t Egress::low_water_bytes(size_t links) const {
  return std::clamp(budget_bytes_ / (2 * std::max<size_t>(links, 1)), kMinLowWaterBytes, kMaxLowWaterBytes);
}

void Egress::observe(bool backlogged, uint64_t drained_bytes, Clock::time_point now) {
  if (!backlogged || !measuring_) {
    measuring_ = backlogged;
    window_bytes_ = drained_bytes;
    window_start_ = now;
    return;
  }
  const double seconds = std::chrono::duration<double>(now - window_start_).count();
  if (seconds < kWindowSeconds) return;
  const double rate = static_cast<double>(drained_bytes - window_bytes_) / seconds;
  rate_ = rate_ == 0 ? rate : rate_ + kNewWeight * (rate - rate_);
  window_bytes_ = drained_bytes;
  window_start_ = now;
  adapt();
}

void Egress::set_chunk(uint64_t bytes) {
  fixed_chunk_bytes_ = bytes == 0 ? 0 : whole_cells(bytes / kCellBytes);
}

void Egress::adapt() {
  chunk_bytes_ = whole_cells(static_cast<uint64_t>(rate_ * kChunkSeconds / static_cast<double>(kCellBytes)));
  budget_bytes_ = std::clamp(static_cast<size_t>(rate_ * kBudgetSeconds), kMinBudgetBytes, kMaxBudgetBytes);
}

}  // namespace byteps
