// Native test of schedule.h: each rule by itself, then all of them against a plain model on random histories.
#include "schedule.h"

#include <algorithm>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.h"

namespace {

using namespace byteps;

constexpr uint64_t kNoLimit = UINT64_MAX;

bool any_link(uint32_t) { return true; }

// The next grant's task, or 0.
uint64_t next_id(Scheduler& scheduler, uint64_t chunk_bytes = 10) {
  const auto grant = scheduler.next(chunk_bytes, any_link);
  return grant ? grant->id : 0;
}

std::vector<uint64_t> drain(Scheduler& scheduler, uint64_t chunk_bytes = 10) {
  std::vector<uint64_t> order;
  while (const uint64_t id = next_id(scheduler, chunk_bytes)) order.push_back(id);
  return order;
}

using Order = std::vector<uint64_t>;

void check_priority_and_ties() {
  Scheduler scheduler(Policy::priority, kNoLimit);
  scheduler.submit({1, INT32_MIN, 0, 20, 20});
  scheduler.submit({2, 5, 1, 20, 20});
  scheduler.submit({3, 5, 0, 20, 20});
  scheduler.submit({4, INT32_MAX, 1, 5, 5});
  CHECK(drain(scheduler) == (Order{4, 2, 2, 3, 3, 1, 1}));
  Scheduler fifo(Policy::fifo, kNoLimit);
  fifo.submit({7, 1, 1, 10, 10});
  fifo.submit({6, 9, 0, 10, 10});
  CHECK(drain(fifo) == (Order{7, 6}));
}

void check_preemption_between_chunks() {
  Scheduler scheduler(Policy::priority, kNoLimit);
  scheduler.submit({1, 0, 0, 25, 25});
  const auto first = scheduler.next(10, any_link);
  CHECK(first->offset == 0 && first->bytes == 10 && !first->last);
  scheduler.submit({2, 1, 0, 5, 5});
  CHECK_EQUAL(next_id(scheduler), 2u);
  CHECK_EQUAL(scheduler.next(10, any_link)->offset, 10u);
  const auto last = scheduler.next(10, any_link);
  CHECK(last->offset == 20 && last->bytes == 5 && last->last);
  CHECK(!scheduler.has_unsent() && scheduler.size() == 2);
}

void check_credit_and_park() {
  Scheduler scheduler(Policy::priority, 30);
  for (uint64_t id = 1; id <= 4; ++id) scheduler.submit({id, 0, 0, 10, 10});
  CHECK(drain(scheduler) == (Order{1, 2, 3}));
  scheduler.park(2);
  scheduler.park(2);  // parked once is parked
  scheduler.park(99);
  CHECK_EQUAL(scheduler.in_flight_bytes(), 20u);
  CHECK_EQUAL(next_id(scheduler), 4u);
  scheduler.finish(2);
  CHECK_EQUAL(scheduler.in_flight_bytes(), 30u);
  for (uint64_t id = 1; id <= 4; ++id) scheduler.finish(id);
  CHECK(scheduler.in_flight_bytes() == 0 && scheduler.size() == 0);
}

// Others wait for it: it goes first, whether it has begun or not.
void check_hurry() {
  Scheduler scheduler(Policy::priority, kNoLimit);
  for (uint64_t id = 1; id <= 3; ++id) scheduler.submit({id, static_cast<int32_t>(10 * id), 0, 20, 20});
  scheduler.hurry(1);
  CHECK_EQUAL(next_id(scheduler), 1u);
  scheduler.hurry(2);
  scheduler.hurry(1);
  scheduler.hurry(99);
  CHECK(drain(scheduler) == (Order{1, 2, 2, 3, 3}));
  scheduler.hurry(3);  // it has gone
  CHECK(!scheduler.has_unsent());
}

// Who is behind in everything keeps its own order: no more than two thirds of the credit hurry.
void check_few_hurry() {
  Scheduler scheduler(Policy::priority, 60);
  for (uint64_t id = 1; id <= 5; ++id) scheduler.submit({id, static_cast<int32_t>(id), 0, 20, 20});
  for (uint64_t id = 1; id <= 3; ++id) scheduler.hurry(id);
  CHECK(drain(scheduler) == (Order{1, 1, 2, 2, 5, 5}));
  scheduler.hurry(3);  // the others have gone
  for (const uint64_t id : {1, 2, 5}) scheduler.finish(id);
  CHECK(drain(scheduler) == (Order{3, 3, 4, 4}));
}

void check_starved() {
  Scheduler scheduler(Policy::priority, 20);
  CHECK(!scheduler.is_starved());
  for (uint64_t id = 1; id <= 3; ++id) scheduler.submit({id, 0, static_cast<uint32_t>(id), 10, 10});
  CHECK(!scheduler.is_starved());
  CHECK_EQUAL(drain(scheduler).size(), 2u);
  CHECK(scheduler.is_starved());
  scheduler.park(1);
  CHECK(!scheduler.is_starved());
  scheduler.submit(
      {4, 9, 1, 20, 20});  // needs more than is left; the third, on another link, must not overtake
  CHECK(scheduler.is_starved());
}

void check_larger_than_the_window() {
  Scheduler scheduler(Policy::priority, 30);
  scheduler.submit({1, 0, 0, 10, 10});
  CHECK_EQUAL(next_id(scheduler), 1u);
  scheduler.submit({2, 0, 0, 100, 100});
  CHECK_EQUAL(next_id(scheduler), 0u);
  scheduler.finish(1);
  CHECK_EQUAL(drain(scheduler).size(), 10u);  // alone, it may
  scheduler.submit({3, 9, 0, 1, 1});
  CHECK_EQUAL(next_id(scheduler), 0u);
}

// A task that lacks credit gets the next credit: nothing less urgent may take it, on whatever link.
void check_no_overtaking() {
  Scheduler scheduler(Policy::priority, 100);
  scheduler.submit({1, 0, 0, 50, 50});
  CHECK_EQUAL(next_id(scheduler), 1u);
  scheduler.submit({2, 5, 0, 80, 80});
  scheduler.submit({3, 4, 0, 10, 10});
  scheduler.submit({4, 3, 1, 10, 10});
  CHECK(drain(scheduler) == (Order{1, 1, 1, 1}));  // what has begun goes on
  scheduler.finish(1);
  CHECK(drain(scheduler, 80) == (Order{2, 3, 4}));
  scheduler.submit({5, 9, 1, 50, 50});  // its link is busy: it keeps nobody from using the others
  scheduler.submit({6, 0, 0, 0, 0});
  CHECK_EQUAL(scheduler.next(10, [](uint32_t link) { return link == 0; })->id, 6u);
}

// What is said to be without room does not begin, and what has just enough does.
void check_room() {
  Scheduler scheduler(Policy::priority, 30);
  CHECK_EQUAL(scheduler.room_bytes(), UINT64_MAX);
  scheduler.submit({1, 0, 0, 20, 20});
  CHECK(drain(scheduler, 20) == (Order{1}));
  CHECK_EQUAL(scheduler.room_bytes(), 10u);
  scheduler.submit({2, 9, 0, 11, 11});
  CHECK_EQUAL(next_id(scheduler), 0u);
  scheduler.submit({3, 10, 0, 10, 10});
  CHECK_EQUAL(next_id(scheduler), 3u);
  scheduler.set_credit(5);
  CHECK_EQUAL(scheduler.room_bytes(), 0u);
  scheduler.park(1);
  scheduler.park(3);
  CHECK_EQUAL(scheduler.room_bytes(), UINT64_MAX);
  Scheduler one_by_one(Policy::stop_and_wait, 30);
  one_by_one.submit({1, 0, 0, 0, 0});
  CHECK_EQUAL(next_id(one_by_one), 1u);
  CHECK_EQUAL(one_by_one.room_bytes(), 0u);
}

void check_stop_and_wait() {
  Scheduler scheduler(Policy::stop_and_wait, kNoLimit);
  scheduler.submit({1, 0, 0, 20, 20});
  scheduler.submit({2, 9, 1, 0, 0});
  CHECK(drain(scheduler) == (Order{2}));
  scheduler.finish(2);
  CHECK(drain(scheduler) == (Order{1, 1}));
  scheduler.submit({3, 9, 1, 10, 10});
  CHECK_EQUAL(next_id(scheduler), 0u);
  scheduler.park(1);
  CHECK_EQUAL(next_id(scheduler), 3u);
}

void check_empty_tasks_and_ids() {
  Scheduler scheduler(Policy::priority, 10);
  scheduler.submit({1, 0, 0, 0, 10});  // pushes nothing, awaits a result
  const auto grant = scheduler.next(10, any_link);
  CHECK(grant->id == 1 && grant->bytes == 0 && grant->last && scheduler.in_flight_bytes() == 10);
  CHECK(!scheduler.next(10, any_link));
  bool refused = false;
  try {
    scheduler.submit({1, 0, 0, 1, 1});
  } catch (const std::logic_error&) {
    refused = true;
  }
  CHECK(refused && scheduler.size() == 1 && !scheduler.has_unsent());
}

void check_drop_link() {
  Scheduler scheduler(Policy::priority, 100);
  for (uint64_t id = 1; id <= 6; ++id) scheduler.submit({id, 0, static_cast<uint32_t>(id % 2), 20, 20});
  CHECK_EQUAL(next_id(scheduler), 1u);
  CHECK_EQUAL(scheduler.next(20, any_link)->id, 1u);
  CHECK_EQUAL(next_id(scheduler), 2u);
  scheduler.drop_link(1);
  CHECK(scheduler.size() == 3 && scheduler.in_flight_bytes() == 20);
  CHECK(drain(scheduler, 20) == (Order{2, 4, 6}));
  scheduler.clear();
  CHECK(scheduler.size() == 0 && scheduler.in_flight_bytes() == 0 && !scheduler.has_unsent());
}

// The rules, written down without any thought for speed.
class Model {
 public:
  Model(Policy policy, uint64_t credit_bytes) : policy_(policy), credit_(credit_bytes) {}

  void submit(const Task& task) {
    // Kept in order: behind all that are at least as urgent.
    const auto less_urgent = [&](const Entry& e) {
      return policy_ != Policy::fifo && e.task.priority < task.priority;
    };
    entries.insert(std::find_if(entries.begin(), entries.end(), less_urgent), Entry{task});
  }

  std::optional<Grant> next(uint64_t chunk_bytes, uint32_t busy_link) {
    bool starved = false;
    for (Entry& e : entries) {
      if (e.complete || e.task.link == busy_link) continue;
      if (!e.started && (starved || !has_credit(e))) {
        starved = true;
        continue;
      }
      e.in_flight = e.in_flight || !e.started;
      e.started = true;
      const uint64_t bytes = std::min(chunk_bytes, e.task.send_bytes - e.sent);
      const Grant grant{e.task.id, e.task.link, e.sent, bytes, e.sent + bytes == e.task.send_bytes};
      e.sent += bytes;
      e.complete = grant.last;
      return grant;
    }
    return std::nullopt;
  }

  uint64_t in_flight_bytes() const {
    uint64_t bytes = 0;
    for (const Entry& e : entries) bytes += e.in_flight ? e.task.credit_bytes : 0;
    return bytes;
  }

  struct Entry {
    Task task;
    uint64_t sent = 0;
    bool started = false, complete = false, in_flight = false;
  };
  std::vector<Entry> entries;
  void set_credit(uint64_t bytes) { credit_ = bytes; }

 private:
  bool has_credit(const Entry& e) const {
    if (policy_ == Policy::stop_and_wait) {
      return std::none_of(entries.begin(), entries.end(), [](const Entry& other) { return other.in_flight; });
    }
    return in_flight_bytes() == 0 || in_flight_bytes() + e.task.credit_bytes <= credit_;
  }

  const Policy policy_;
  uint64_t credit_;
};

void check_next(Scheduler& scheduler, Model& model, uint64_t chunk_bytes, uint32_t busy_link) {
  const auto actual = scheduler.next(chunk_bytes, [&](uint32_t link) { return link != busy_link; });
  const auto expected = model.next(chunk_bytes, busy_link);
  CHECK_EQUAL(actual.has_value(), expected.has_value());
  if (!actual) return;
  CHECK_EQUAL(actual->id, expected->id);
  CHECK(actual->link == expected->link && actual->offset == expected->offset);
  CHECK(actual->bytes == expected->bytes && actual->last == expected->last);
}

void check_history(Policy policy, uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  Scheduler scheduler(policy, 50);
  Model model(policy, 50);
  for (uint64_t id = 1; id < 300; ++id) {
    const uint32_t size = below(40);
    const Task task{id, static_cast<int32_t>(below(5)) - 2, below(3), below(4) != 0 ? size : 0, size};
    scheduler.submit(task);
    model.submit(task);
    for (uint32_t sends = below(6); sends > 0; --sends) check_next(scheduler, model, 1 + below(20), below(5));
    const size_t chosen = below(static_cast<uint32_t>(model.entries.size()));
    const uint64_t chosen_id = model.entries[chosen].task.id;
    const uint32_t what = below(20);
    if (what < 9) {
      scheduler.finish(chosen_id);
      model.entries.erase(model.entries.begin() + static_cast<ptrdiff_t>(chosen));
    } else if (what < 15) {
      scheduler.park(chosen_id);
      model.entries[chosen].in_flight = false;
    } else if (what == 15) {
      const uint32_t link = below(3);
      scheduler.drop_link(link);
      std::erase_if(model.entries, [&](const Model::Entry& e) { return e.task.link == link; });
    } else if (what == 16) {
      const uint32_t credit = below(100);
      scheduler.set_credit(credit);
      model.set_credit(credit);
    }
    CHECK_EQUAL(scheduler.in_flight_bytes(), model.in_flight_bytes());
    CHECK_EQUAL(scheduler.size(), model.entries.size());
  }
}

}  // namespace

int main() {
  for (const auto check :
       {check_priority_and_ties, check_preemption_between_chunks, check_credit_and_park, check_hurry,
        check_few_hurry, check_starved, check_larger_than_the_window, check_no_overtaking, check_room,
        check_stop_and_wait, check_empty_tasks_and_ids, check_drop_link})
    check();
  for (uint32_t seed = 0; seed < 200; ++seed) {
    for (const Policy policy : {Policy::priority, Policy::fifo, Policy::stop_and_wait})
      check_history(policy, seed);
  }
  return 0;
}
