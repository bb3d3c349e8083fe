// Native test of events.h, alone and in a job.
#include <thread>

#include "job.h"

namespace {

using namespace byteps;

Event event(int64_t number) { return {number, EventKind::pushed, 1, 2, 3, 4, 5}; }

void test_full_buffer_drops_and_counts() {
  EventBuffer buffer(4);
  std::vector<Event> taken;
  CHECK(buffer.on());
  for (int64_t i = 0; i < 7; ++i) buffer.record(event(i));
  CHECK_EQUAL(buffer.take(taken), 3u);
  buffer.record(event(7));
  CHECK_EQUAL(buffer.take(taken), 0u);
  CHECK_EQUAL(taken.size(), 5u);
  for (size_t i = 0; i < 4; ++i) CHECK_EQUAL(taken[i].time_ns, static_cast<int64_t>(i));
  CHECK_EQUAL(taken[4].time_ns, 7);
}

void test_no_buffer_is_off() { CHECK(!EventBuffer(0).on()); }

// Every event is taken or counted, in order, while one thread records and another takes.
void test_recording_while_taking() {
  constexpr int64_t kEvents = 200'000;
  EventBuffer buffer(1000);
  std::thread recording([&] {
    for (int64_t i = 0; i < kEvents; ++i) buffer.record(event(i));
  });
  std::vector<Event> taken;
  uint64_t dropped = 0;
  while (taken.size() + dropped < kEvents) {
    dropped += buffer.take(taken);
    std::this_thread::yield();
  }
  recording.join();
  for (size_t i = 1; i < taken.size(); ++i) CHECK(taken[i - 1].time_ns < taken[i].time_ns);
}

std::vector<Event> of_kind(const std::vector<Event>& events, EventKind kind) {
  std::vector<Event> found;
  for (const Event& one : events) {
    if (one.kind == kind) found.push_back(one);
  }
  return found;
}

Event of_partition(const std::vector<Event>& events, uint32_t partition) {
  const auto is_it = [&](const Event& one) { return one.partition == partition; };
  CHECK_EQUAL(std::count_if(events.begin(), events.end(), is_it), 1);
  return *std::find_if(events.begin(), events.end(), is_it);
}

// Every partition passes all stages in order at both ends.
void test_stages_of_a_round() {
  constexpr size_t kPartitions = 3;
  Shape shape;
  shape.event_capacity = 100;
  Job job(shape);
  job.declare(0, kPartitions * kCellBytes, kCellBytes);
  std::vector<Memory> memory(2, Memory(kPartitions * kCellBytes));
  std::vector<std::shared_ptr<Transfer>> transfers;
  for (size_t rank = 0; rank < 2; ++rank) transfers.push_back(memory[rank].submit(*job.workers[rank], 0));
  for (const auto& transfer : transfers) CHECK(outcome(*transfer) == Status::ok);

  std::vector<Event> at_server;
  CHECK_EQUAL(job.servers[0]->take_events(at_server), 0u);
  CHECK_EQUAL(of_kind(at_server, EventKind::arrived).size(), kPartitions);
  const auto sums = of_kind(at_server, EventKind::summed);
  CHECK_EQUAL(sums.size(), kPartitions);
  for (const auto& worker : job.workers) {
    std::vector<Event> events;
    CHECK_EQUAL(worker->take_events(events), 0u);
    CHECK_EQUAL(events.size(), 4 * kPartitions);
    for (const Event& sum : sums) {
      int64_t last_ns = 0;
      for (uint32_t kind = 1; kind <= static_cast<uint32_t>(EventKind::returned); ++kind) {
        const Event stage = of_partition(of_kind(events, static_cast<EventKind>(kind)), sum.partition);
        CHECK_EQUAL(stage.round, 1u);
        CHECK(stage.time_ns >= last_ns);
        last_ns = stage.time_ns;
      }
      CHECK(last_ns >= sum.time_ns);
    }
  }
}

}  // namespace

int main() {
  test_full_buffer_drops_and_counts();
  test_no_buffer_is_off();
  test_recording_while_taking();
  test_stages_of_a_round();
}
