// Native test of what leaves first and when: urgent bytes overtake, a server that ends sends what it owes,
// and heartbeats come whatever else happens.
#include <sys/epoll.h>

#include <csignal>
#include <thread>

#include "flag.h"
#include "raw_peer.h"

namespace {

using namespace byteps;

constexpr uint32_t kLargeBytes = 8 << 20;  // far more than a link takes while nobody reads
constexpr uint32_t kSmallBytes = 64;

Lane::Options options(double heartbeat_s = kNoHeartbeatS) {
  return {Policy::priority, UINT64_MAX, heartbeat_s, 0};
}

Header push(uint32_t rank, uint32_t tensor, uint32_t length, uint32_t offset, int32_t priority) {
  Header header;
  header.type = FrameType::push;
  header.tensor = tensor;
  header.round = 1;
  header.rank = rank;
  header.length = length;
  header.offset = offset;
  header.priority = priority;
  return header;
}

void push_all(RawPeer& peer, uint32_t rank, uint32_t tensor, uint32_t bytes, int32_t priority) {
  for (uint32_t offset = 0; offset < bytes; offset += kMaxPayloadBytes) {
    const uint32_t length = std::min<uint32_t>(kMaxPayloadBytes, bytes - offset);
    peer.send(push(rank, tensor, length, offset, priority));
  }
}

// Reads frames of tensors 1 (large) and 2 (small) until both are complete; the bytes of 1 that came after 2.
uint32_t bytes_overtaken(RawPeer& peer, FrameType type, uint32_t large = 0) {
  uint32_t before_small = 0;
  bool small = false;
  while (large < kLargeBytes || !small) {
    const auto header = peer.next();
    CHECK(header.has_value());
    if (header->type != type) continue;
    if (header->tensor == 2) {
      small = true;
      before_small = large;
    } else {
      large += header->length;
    }
  }
  return kLargeBytes - before_small;
}

struct ServerOfTwo {
  explicit ServerOfTwo(double heartbeat_s = kNoHeartbeatS) : server({2, 1, false, options(heartbeat_s)}) {
    server.install({{1, {}, {{0, 0, kLargeBytes}}}, {2, {}, {{0, 0, kSmallBytes}}}});
    server.start();
    for (uint32_t rank = 0; rank < 2; ++rank) {
      auto [here, there] = tcp_links();
      server.add_link(rank, 0, std::move(there));
      ranks.push_back(std::make_unique<RawPeer>(std::move(here)));
    }
  }
  Server server;
  std::vector<std::unique_ptr<RawPeer>> ranks;
};

// Rank 0 reads nothing for now. It does not hold up rank 1, and gets the urgent result first.
void check_urgent_results_overtake() {
  ServerOfTwo test;
  for (const uint32_t rank : {0, 1}) push_all(*test.ranks[rank], rank, 1, kLargeBytes, 0);
  for (const uint32_t rank : {0, 1}) push_all(*test.ranks[rank], rank, 2, kSmallBytes, 9);
  bytes_overtaken(*test.ranks[1], FrameType::result);
  CHECK(bytes_overtaken(*test.ranks[0], FrameType::result) > kLargeBytes / 4);
}

void check_urgent_pushes_overtake() {
  Memory large(kLargeBytes), small(kSmallBytes);  // outlives the worker, which still sends when this ends
  Worker worker({0, 1, options(), 1});
  worker.declare(1, {{0, 0, 0, 0, kLargeBytes}});
  worker.declare(2, {{0, 0, 0, 0, kSmallBytes}});
  auto [here, there] = tcp_links();
  worker.add_link(0, 0, std::move(there));
  RawPeer server(std::move(here));
  worker.start();
  const auto first = large.submit(worker, 1, 0);
  const uint32_t begun = server.next()->length;
  const auto second = small.submit(worker, 2, 1);
  CHECK(bytes_overtaken(server, FrameType::push, begun) > kLargeBytes / 4);
}

void check_close_sends_what_is_owed() {
  ServerOfTwo test;
  for (const uint32_t rank : {0, 1}) push_all(*test.ranks[rank], rank, 1, kLargeBytes, 0);
  RawPeer& peer = *test.ranks[0];
  uint32_t received = peer.next_result()->length;  // complete: from here on the server only sends
  std::thread closer([&] { test.server.close(kPatienceS); });
  std::thread other([&] { CHECK(test.ranks[1]->is_hung_up_on()); });
  while (const auto header = peer.next()) received += header->length;
  closer.join();
  other.join();
  CHECK_EQUAL(received, kLargeBytes);
}

void check_heartbeats() {
  ServerOfTwo test(0.02);
  auto [here, there] = tcp_links();
  test.server.add_beacon(std::move(there));
  RawPeer coordinator(std::move(here));
  coordinator.await_heartbeats(3);
  test.ranks[1]->await_heartbeats(3);  // nothing else is said on this link
  test.server.install({{3, {}, {{0, 0, kSmallBytes}}}});
  push_all(*test.ranks[0], 0, 3, kSmallBytes, 0);
  CHECK(test.ranks[0]->next()->type == FrameType::parked);
  const auto missing = test.server.missing(3);
  CHECK(missing.size() == 1 && missing[0].rank == 1 && missing[0].heard_s >= 0 &&
        missing[0].heard_s < kPatienceS);
  coordinator.send(Header{});  // it has nothing to say here
  CHECK(coordinator.is_hung_up_on());
  push_all(*test.ranks[1], 1, 3, kSmallBytes, 0);
  CHECK(test.ranks[0]->next_result()->length == kSmallBytes);
}

// A signal ends a wait early, so that Ctrl-C is noticed; the transfer goes on.
void check_signals_and_timeouts() {
  Job job({2, 1, 1, inproc_links});
  job.declare(1, kSmallBytes, kSmallBytes);
  Memory here(kSmallBytes), there(kSmallBytes);
  const auto transfer = here.submit(*job.workers[0], 1);
  CHECK(transfer->wait(0) == Transfer::Wake::timed_out && transfer->wait(-1) == Transfer::Wake::timed_out);
  struct sigaction action{};
  action.sa_handler = [](int) {};
  CHECK(sigaction(SIGUSR1, &action, nullptr) == 0);
  std::atomic<bool> interrupted{false};
  std::thread waiter([&] {
    CHECK(transfer->wait(kPatienceS) == Transfer::Wake::interrupted);
    interrupted = true;
  });
  while (!interrupted) {
    pthread_kill(waiter.native_handle(), SIGUSR1);
    std::this_thread::yield();
  }
  waiter.join();
  CHECK(outcome(*there.submit(*job.workers[1], 1)) == Status::ok && outcome(*transfer) == Status::ok);
}

// A link to nobody: what it takes stays in this host until the test says that it has gone.
class Hoard final : public Link {
 public:
  struct State {
    std::atomic<size_t> taken{0}, gone{0};
    bool at_device = false;
  };
  explicit Hoard(std::shared_ptr<State> state) : state_(std::move(state)) {}

  ssize_t send(const iovec* parts, int count) override {
    size_t bytes = 0;
    for (int i = 0; i < count; ++i) bytes += parts[i].iov_len;
    state_->taken += bytes;
    return static_cast<ssize_t>(bytes);
  }
  ssize_t receive(const iovec*, int) override { return 0; }
  int read_fd() const override { return never_readable_.fd(); }
  int write_fd() const override { return never_readable_.fd(); }
  uint32_t write_event() const override { return EPOLLOUT; }
  size_t unsent() const override { return state_->at_device ? 0 : in_host(); }
  Queued queued() const override {
    const size_t here = in_host();  // asked once: bytes that go meanwhile would look held back
    return {here, state_->at_device ? here : 0};
  }
  void set_low_water(size_t) override {}
  void abandon() override {}

 private:
  size_t in_host() const { return state_->taken - state_->gone; }

  const std::shared_ptr<State> state_;
  Flag never_readable_;
};

struct TwoHoards {
  explicit TwoHoards(bool at_device) : worker({0, 1, options(), 1}) {
    for (uint32_t server : {0, 1}) {
      links.push_back(std::make_shared<Hoard::State>());
      links[server]->at_device = at_device;
      worker.declare(server, {{0, server, 0, 0, kLargeBytes}});
      worker.add_link(server, 0, std::make_unique<Hoard>(links[server]));
    }
    worker.start();
    for (uint32_t server : {0, 1}) memory[server].submit(worker, server, server == 0 ? 9 : 0);
  }
  std::array<Memory, 2> memory{Memory(kLargeBytes), Memory(kLargeBytes)};
  std::vector<std::shared_ptr<Hoard::State>> links;
  Worker worker;
};

// The device's line is one for all links: nothing less urgent goes over another link and stands before what
// is still to come.
void check_the_urgent_stand_first_in_line() {
  TwoHoards test(true);
  while (true) {
    const size_t less_urgent = test.links[1]->taken;
    const size_t urgent = test.links[0]->taken;
    if (urgent >= kLargeBytes) break;
    CHECK_EQUAL(less_urgent, 0u);
    test.links[0]->gone = urgent;
    std::this_thread::yield();
  }
}

// What a link holds back itself stands in nobody's way.
void check_a_link_that_is_stuck_stops_no_other() {
  TwoHoards test(false);
  while (test.links[1]->taken < kLargeBytes) {
    CHECK(test.links[0]->taken < kLargeBytes);
    test.links[1]->gone = test.links[1]->taken.load();
    std::this_thread::yield();
  }
}

}  // namespace

int main() {
  for (const auto check : {check_urgent_results_overtake, check_urgent_pushes_overtake,
                           check_close_sends_what_is_owed, check_heartbeats, check_signals_and_timeouts,
                           check_the_urgent_stand_first_in_line, check_a_link_that_is_stuck_stops_no_other}) {
    check();
  }
  return 0;
}
