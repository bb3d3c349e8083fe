// The credit window on a virtual clock: a link of a given rate and round trip, and a sender that keeps it
// busy.
#include "credit.h"

#include <deque>

#include "check.h"

using byteps::Clock;
using byteps::CreditWindow;

namespace {

constexpr uint64_t kPartition = 128 * 1024;

Clock::duration seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

struct Path {
  double bytes_per_second;
  double round_trip_s;
};

// Sends partitions for `duration_s`, as many at once as the window allows. A partition comes back after the
// round trip and after those before it have crossed the link. Returns the share of the link that was used.
double run(CreditWindow& window, const Path& path, double start_s, double duration_s) {
  struct Flight {
    double begun_s;
    double back_s;
  };
  std::deque<Flight> in_flight;
  double now_s = start_s;
  double link_free_s = start_s;
  uint64_t sent = 0;
  while (now_s < start_s + duration_s) {
    while (in_flight.empty() || (in_flight.size() + 1) * kPartition <= window.bytes()) {
      window.begin(kPartition, in_flight.empty(), Clock::time_point(seconds(now_s)));
      link_free_s = std::max(link_free_s, now_s) + static_cast<double>(kPartition) / path.bytes_per_second;
      in_flight.push_back({now_s, link_free_s + path.round_trip_s});
      sent += kPartition;
    }
    const Flight done = in_flight.front();
    in_flight.pop_front();
    now_s = done.back_s;
    window.give_back(kPartition, seconds(now_s - done.begun_s), Clock::time_point(seconds(now_s)));
  }
  return static_cast<double>(sent) / (path.bytes_per_second * duration_s);
}

void the_link_stays_full_with_little_in_flight() {
  for (const double rate : {12.5e6, 25e6, 125e6, 1250e6}) {
    for (const double round_trip_s : {0.0002, 0.005, 0.05}) {
      CreditWindow window;
      run(window, {rate, round_trip_s}, 0, 2);
      const double needed = rate * (round_trip_s + static_cast<double>(kPartition) / rate);
      if (needed > CreditWindow::kMaxBytes / 2) continue;
      CHECK(run(window, {rate, round_trip_s}, 2, 2) >= 0.97);
      const double most = std::max<double>(3 * kPartition, 1.1 * (needed + rate * 0.006));
      CHECK(static_cast<double>(window.bytes()) <= most);
    }
  }
}

void it_follows_a_link_that_changes() {
  CreditWindow window;
  run(window, {125e6, 0.001}, 0, 2);
  const uint64_t fast = window.bytes();
  run(window, {25e6, 0.001}, 2, 3);
  CHECK(window.bytes() < fast / 2);
  CHECK(run(window, {125e6, 0.001}, 5, 2) >= 0.9);
  CHECK(window.bytes() >= fast * 9 / 10);
}

void it_tells_how_long_credit_takes_to_come_back() {
  CreditWindow window;
  CHECK(window.turn(1000000) == Clock::duration::zero());  // nothing is known yet
  run(window, {25e6, 0.001}, 0, 2);
  const Clock::duration turn = window.turn(250000);
  CHECK(turn > seconds(0.0095) && turn < seconds(0.011));
  CHECK(window.turn(uint64_t{1} << 40) <= seconds(0.1));
}

void large_partitions_overlap() {
  CreditWindow window;
  const uint64_t large = 4 * 1024 * 1024;
  Clock::time_point now{};
  for (int i = 0; i < 50; ++i) {
    window.begin(large, true, now);
    now += seconds(0.3);
    window.give_back(large, seconds(0.3), now);
  }
  CHECK(window.bytes() >= 3 * large);
}

// A model that is used no more, or a broadcast at the start, had larger ones than what is sent now.
void partitions_that_are_sent_no_more_are_forgotten() {
  const Path path{25e6, 0.001};
  const auto train = [&path](CreditWindow& window, int from_s, int to_s) {
    for (int step_s = from_s; step_s < to_s; ++step_s) run(window, path, step_s, 0.9);
  };
  CreditWindow fresh, window;
  train(fresh, 1, 25);
  const uint64_t large = 4 * 1024 * 1024;
  window.begin(large, true, Clock::time_point{});
  window.give_back(large, seconds(0.2), Clock::time_point(seconds(0.2)));
  CHECK(window.bytes() >= 3 * large);
  train(window, 1, 9);
  CHECK(window.bytes() >= 3 * large);  // they may come back with the next step
  train(window, 9, 25);
  CHECK_EQUAL(window.bytes(), fresh.bytes());
}

// However little comes back: what is too low a credit holds the rate down by which it would rise.
void every_busy_server_has_its_share() {
  CreditWindow window(4);
  Clock::time_point now{};
  for (int i = 0; i < 50; ++i) {
    window.begin(kPartition, true, now);
    now += seconds(0.1);
    window.give_back(kPartition, seconds(0.1), now);
  }
  CHECK_EQUAL(window.bytes(), 4 * 3 * kPartition);
}

}  // namespace

int main() {
  the_link_stays_full_with_little_in_flight();
  it_follows_a_link_that_changes();
  it_tells_how_long_credit_takes_to_come_back();
  large_partitions_overlap();
  partitions_that_are_sent_no_more_are_forgotten();
  every_busy_server_has_its_share();
  return 0;
}
