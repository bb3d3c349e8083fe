// Native test of worker.h and server.h: real workers and servers over every kind of link.
#include "job.h"

#include <sys/wait.h>

#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>

namespace {

using namespace byteps;

constexpr size_t kPartitionBytes = 2 * kCellBytes;
constexpr size_t kLargeBytes = 20 * kPartitionBytes;

// Sizes around cells and partitions.
const std::vector<size_t>& sizes() {
  static const std::vector<size_t> all{4,
                                       kCellBytes - 4,
                                       kCellBytes,
                                       kCellBytes + 4,
                                       kPartitionBytes - 4,
                                       kPartitionBytes,
                                       kPartitionBytes + 4,
                                       3 * kPartitionBytes + 12,
                                       40,
                                       8,
                                       kCellBytes + 8};
  return all;
}

bool contributes(uint32_t rank, uint32_t tensor, uint32_t round) {
  return (rank * 7 + tensor * 3 + round) % 5 != 0;
}
bool wants(uint32_t rank, uint32_t tensor, uint32_t round) { return (rank * 5 + tensor + round) % 6 != 0; }
float value_of(uint32_t rank, uint32_t tensor, uint32_t round) {
  return static_cast<float>(rank * 4 + tensor + round);
}

// One rank: all tensors in its own random order, several rounds.
void run_rank(Worker& worker, uint32_t rank, uint32_t ranks, uint32_t rounds) {
  std::mt19937 random(rank);
  std::vector<uint32_t> order(sizes().size());
  std::iota(order.begin(), order.end(), 0u);
  for (uint32_t round = 1; round <= rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    std::vector<Memory> memory;
    for (uint32_t tensor = 0; tensor < order.size(); ++tensor) {
      memory.emplace_back(sizes()[tensor], value_of(rank, tensor, round));
    }
    std::vector<std::shared_ptr<Transfer>> transfers(order.size());
    for (const uint32_t tensor : order) {
      auto* source = reinterpret_cast<std::byte*>(memory[tensor].source.data());
      auto* result = tensor % 3 == 0 ? source : reinterpret_cast<std::byte*>(memory[tensor].result.data());
      transfers[tensor] =
          worker.submit(tensor, contributes(rank, tensor, round) ? source : nullptr,
                        wants(rank, tensor, round) ? result : nullptr, static_cast<int32_t>(random() % 3));
    }
    for (const uint32_t tensor : order) {
      CHECK(outcome(*transfers[tensor]) == Status::ok);
      float sum = 0;
      for (uint32_t r = 0; r < ranks; ++r)
        sum += contributes(r, tensor, round) ? value_of(r, tensor, round) : 0;
      if (tensor % 3 == 0) memory[tensor].source.swap(memory[tensor].result);
      if (wants(rank, tensor, round)) CHECK(memory[tensor].holds(sum));
    }
  }
}

// With credit for less than a partition per lane and ranks that disagree about the order, nothing may
// deadlock.
void check_sums(const Shape& shape) {
  Job job(shape);
  for (uint32_t tensor = 0; tensor < sizes().size(); ++tensor)
    job.declare(tensor, sizes()[tensor], kPartitionBytes);
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < shape.workers; ++rank) {
    ranks.emplace_back([&, rank] { run_rank(*job.workers[rank], rank, shape.workers, 2); });
  }
  for (auto& rank : ranks) rank.join();
  CHECK(job.workers[0]->in_flight().empty());
  CHECK(job.workers[0]->bytes_sent() > 0 && job.servers[0]->bytes_received() > 0);
}

void check_all_shapes() {
  uint32_t number = 0;
  for (const auto& [name, make] : kLinkKinds) {
    for (const uint32_t workers : {1, 3}) {
      for (const uint32_t servers : {1, 3}) {
        for (const uint32_t lanes : {1, 2}) {
          const auto policy = static_cast<Policy>(number % 3);
          check_sums({workers, servers, lanes, make, kPartitionBytes, policy, number % 2 == 0});
          ++number;
        }
      }
    }
  }
}

// Until these ranks are what the server waits for.
void await_missing(Server& server, uint32_t tensor, const std::vector<uint32_t>& ranks) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(kPatienceS);
  while (true) {
    std::vector<uint32_t> now;
    for (const auto& entry : server.missing(tensor)) now.push_back(entry.rank);
    if (now == ranks) return;
    CHECK(Clock::now() < deadline);
    std::this_thread::yield();
  }
}

// Rank 2 contributes to tensor 0, not to 1 and 2, and leaves.
void check_departure(LinkMaker make) {
  Job job({3, 1, 1, make});
  for (uint32_t tensor = 0; tensor < 3; ++tensor) job.declare(tensor, kPartitionBytes, kPartitionBytes);
  std::vector<Memory> memory(6, Memory(kPartitionBytes));
  Worker &first = *job.workers[0], &second = *job.workers[1], &leaver = *job.workers[2];
  const auto complete = memory[0].submit(first, 0), incomplete = memory[1].submit(first, 1);
  const auto left_behind = memory[2].submit(leaver, 0);
  await_missing(*job.servers[0], 0, {1});
  await_missing(*job.servers[0], 1, {1, 2});
  leaver.close();
  CHECK(outcome(*left_behind) == Status::closed);
  job.servers[0]->depart(2);
  CHECK(outcome(*incomplete) == Status::departed && incomplete->peer() == 2);
  CHECK(outcome(*memory[3].submit(second, 0)) == Status::ok && outcome(*complete) == Status::ok);
  CHECK(memory[0].holds(3) && memory[3].holds(3));
  for (uint32_t tensor = 0; tensor < 3; ++tensor) {
    for (Worker* worker : {&first, &second}) {
      const auto late = memory[4].submit(*worker, tensor);
      CHECK(outcome(*late) == Status::departed && late->peer() == 2);
    }
  }
}

// A tensor of some ranks waits for those alone, and nobody else may push to it.
void check_members(LinkMaker make) {
  Job job({3, 2, 1, make});
  job.declare(1, kLargeBytes, kPartitionBytes, {DType::f32, Op::average}, {0, 2});
  Memory first(kLargeBytes, 1), third(kLargeBytes, 5), stranger(kLargeBytes);
  for (auto& server : job.servers) server->depart(1);
  for (int round = 0; round < 2; ++round) {
    const auto one = first.submit(*job.workers[0], 1), two = third.submit(*job.workers[2], 1);
    CHECK(outcome(*one) == Status::ok && outcome(*two) == Status::ok && first.holds(3) && third.holds(3));
  }
  CHECK(outcome(*stranger.submit(*job.workers[1], 1)) == Status::link_lost);
}

void check_retraction() {
  Job job({2, 2, 2});
  job.declare(1, kLargeBytes, kPartitionBytes);
  Memory memory(kLargeBytes);
  const auto transfer = memory.submit(*job.workers[0], 1);
  job.workers[0]->retract(1);
  for (auto& server : job.servers) server->retire({1});
  CHECK(outcome(*transfer) == Status::retracted);
  CHECK(outcome(*memory.submit(*job.workers[0], 1)) == Status::retracted);
  job.workers[1]->forget(1);
  job.workers[1]->retract(2);  // the news may come before the reply to the declaration
  job.declare(2, kPartitionBytes, kPartitionBytes);
  CHECK(outcome(*memory.submit(*job.workers[1], 2)) == Status::retracted);
  job.declare(3, kLargeBytes, kPartitionBytes);  // the others go on
  Memory other(kLargeBytes);
  const auto one = memory.submit(*job.workers[0], 3), two = other.submit(*job.workers[1], 3);
  CHECK(outcome(*one) == Status::ok && outcome(*two) == Status::ok && memory.holds(2) && other.holds(2));
}

void check_worker_closed_in_a_round(LinkMaker make) {
  Job job({2, 2, 2, make});
  job.declare(1, kLargeBytes, kPartitionBytes);
  Memory here(kLargeBytes), there(kLargeBytes);
  const auto closing = here.submit(*job.workers[0], 1), other = there.submit(*job.workers[1], 1);
  job.workers[0]->close();
  const bool finished = outcome(*closing) == Status::ok;
  CHECK(finished || closing->status() == Status::closed);
  for (auto& server : job.servers) server->depart(0);
  const Status status = outcome(*other);
  CHECK(status == Status::ok || (!finished && status == Status::departed && other->peer() == 0));
}

void check_server_closed_in_a_round(LinkMaker make) {
  Job job({2, 2, 2, make});
  job.declare(1, kLargeBytes, kPartitionBytes);
  Memory here(kLargeBytes), there(kLargeBytes);
  const auto one = here.submit(*job.workers[0], 1);
  job.servers[1]->close(0);
  CHECK(outcome(*one) == Status::link_lost && one->peer() == 1);
  const auto two = there.submit(*job.workers[1], 1);
  CHECK(outcome(*two) == Status::link_lost && two->peer() == 1);
  job.servers[1]->install({});  // too late, but no reason to hang
  CHECK(job.servers[1]->missing(1).empty());
}

// A lane's link breaks; what the other lane has in flight would wait for ranks that wait for this one.
void check_one_broken_link_ends_all_lanes() {
  Job job({2, 1, 2});
  job.declare(1, kPartitionBytes, kPartitionBytes);  // on lane 0 only
  Memory memory(kPartitionBytes);
  const auto transfer = memory.submit(*job.workers[0], 1);
  {
    auto [here, there] = inproc_links();
    job.workers[0]->add_link(1, 1, std::move(here));
  }
  CHECK(outcome(*transfer) == Status::link_lost && transfer->peer() == 1);
}

void check_close_while_submitting() {
  constexpr uint32_t kThreads = 3;
  Job job({1, 2, 2, tcp_links, kPartitionBytes});
  for (uint32_t i = 0; i < kThreads; ++i) job.declare(i, kLargeBytes / 8, kPartitionBytes);
  std::atomic<uint32_t> completed{0};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      Memory memory(kLargeBytes / 8);
      Status status;
      while ((status = outcome(*memory.submit(*job.workers[0], i))) == Status::ok) ++completed;
      CHECK(status == Status::closed);
      CHECK(outcome(*memory.submit(*job.workers[0], i)) == Status::closed);
    });
  }
  std::thread tuner([&] {
    for (uint64_t credit = 1; completed < 20; ++credit) {
      job.workers[0]->set_credit(credit % 8 * kCellBytes);
      CHECK(job.workers[0]->in_flight().size() <= kThreads);
    }
  });
  tuner.join();
  std::thread closer([&] { job.workers[0]->close(); });
  job.workers[0]->close();
  closer.join();
  for (auto& thread : threads) thread.join();
}

void check_destruction_in_any_order(LinkMaker make) {
  std::vector<int> order{0, 1, 2, 3};
  do {
    Job job({2, 2, 2, make});
    job.declare(1, kLargeBytes, kPartitionBytes);
    std::vector<Memory> memory(2, Memory(kLargeBytes));
    std::vector<std::shared_ptr<Transfer>> transfers;
    for (size_t i = 0; i < 2; ++i) transfers.push_back(memory[i].submit(*job.workers[i], 1));
    for (const int which : order) {
      if (which < 2) {
        job.workers[static_cast<size_t>(which)].reset();
        CHECK(transfers[static_cast<size_t>(which)]->status() != Status::pending);
      } else {
        job.servers[static_cast<size_t>(which - 2)].reset();
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

template <typename Exception, typename Call>
bool throws(const Call& call) {
  try {
    call();
  } catch (const Exception&) {
    return true;
  }
  return false;
}

void check_misuse() {
  const Server::Options options{1, 1, false, {}};
  Server server(options);
  const auto install = [&](const PartitionSpec& part) { server.install({{1, {}, {part}}}); };
  for (const PartitionSpec& part : {PartitionSpec{0, 0, 0}, PartitionSpec{0, 0, 6}, PartitionSpec{0, 1, 4},
                                    PartitionSpec{0, 0, uint64_t{1} << 32}}) {
    CHECK(throws<std::invalid_argument>([&] { install(part); }));
  }
  CHECK(throws<std::invalid_argument>([&] { server.install({{1, {}, {{0, 0, 4}}, {1}}}); }));
  CHECK(throws<std::out_of_range>([&] { server.add_link(1, 0, inproc_links().first); }));
  CHECK(throws<std::out_of_range>([&] { server.depart(1); }));
  Worker worker({0, 1, {}, 1});
  CHECK(throws<std::invalid_argument>([&] { worker.declare(1, {{0, 0, 1, 0, 4}}); }));
  CHECK(throws<std::invalid_argument>([&] { worker.declare(1, {{0, 0, 0, 0, 0}}); }));
  CHECK(throws<std::invalid_argument>([&] { worker.submit(1, nullptr, nullptr, 0); }));
  worker.declare(1, {{0, 0, 0, 0, 4}});
  CHECK(throws<std::logic_error>([&] { worker.submit(1, nullptr, nullptr, 0); }));  // not started
  install({0, 0, 4});                                                               // before the start, too
  auto [here, there] = inproc_links();
  server.add_link(0, 0, std::move(there));
  worker.add_link(0, 0, std::move(here));
  server.start();
  worker.start();
  worker.start();
  CHECK(outcome(*worker.submit(1, nullptr, nullptr, 0)) == Status::ok);
  worker.declare(2, {{0, 7, 0, 0, 4}});
  const auto nowhere = worker.submit(2, nullptr, nullptr, 0);
  CHECK(outcome(*nowhere) == Status::link_lost && nowhere->peer() == 7);
  worker.declare(3, {});
  CHECK(worker.submit(3, nullptr, nullptr, 0)->status() == Status::ok);  // no bytes, nothing to wait for
}

// A forked child lets go of what it inherited; the parent notices nothing.
void check_fork(LinkMaker make) {
  Job job({2, 1, 2, make});
  job.declare(1, kLargeBytes, kPartitionBytes);
  Memory here(kLargeBytes), there(kLargeBytes);
  const auto before = here.submit(*job.workers[0], 1);
  CHECK(outcome(*there.submit(*job.workers[1], 1)) == Status::ok && outcome(*before) == Status::ok);
  const auto one = here.submit(*job.workers[0], 1);
  const pid_t child = fork();
  if (child == 0) {
    for (auto& worker : job.workers) worker->abandon();
    for (auto& server : job.servers) server->abandon();
    job.workers.clear();
    job.servers.clear();
    _exit(0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  const auto two = there.submit(*job.workers[1], 1);
  CHECK(outcome(*one) == Status::ok && outcome(*two) == Status::ok && here.holds(2) && there.holds(2));
}

}  // namespace

int main() {
  for (const auto check : {check_all_shapes, check_retraction, check_one_broken_link_ends_all_lanes,
                           check_close_while_submitting, check_misuse})
    check();
  for (const auto& [name, make] : ucx_kinds()) {
    check_departure(make);
    check_members(make);
  }
  for (const auto& [name, make] : kLinkKinds) {
    check_departure(make);
    check_members(make);
    check_destruction_in_any_order(make);
    check_fork(make);
    for (int i = 0; i < 5; ++i) {
      check_worker_closed_in_a_round(make);
      check_server_closed_in_a_round(make);
    }
  }
  return 0;
}
