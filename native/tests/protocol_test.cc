// Native test of what workers and servers do with a peer that breaks the protocol, sends again, or stops
// midway: it is hung up on or ignored, and nobody else's memory or result is touched.
#include <functional>
#include <optional>
#include <thread>

#include "raw_peer.h"

namespace {

using namespace byteps;

constexpr uint32_t kEpoch = 3;
constexpr size_t kTensorBytes = 2 * kCellBytes + 8;

Header frame(FrameType type, uint32_t length = 0, uint32_t offset = 0, uint32_t round = 1) {
  Header header;
  header.type = type;
  header.epoch = kEpoch;
  header.tensor = 1;
  header.round = round;
  header.length = length;
  header.offset = offset;
  return header;
}

Header push(uint32_t length = kTensorBytes, uint32_t offset = 0, uint32_t round = 1) {
  return frame(FrameType::push, length, offset, round);
}

Header changed(Header header, const std::function<void(Header&)>& change) {
  change(header);
  return header;
}

// A server with two workers; the test is the workers.
struct ServerUnderTest {
  ServerUnderTest() : server({2, 1, false, {Policy::priority, UINT64_MAX, kNoHeartbeatS, kEpoch}}) {
    server.install({{1, {}, {{0, 0, kTensorBytes}}}, {2, {}, {{0, 0, 4}}}});
    server.start();
    for (uint32_t rank = 0; rank < 2; ++rank) {
      auto [here, there] = tcp_links();
      server.add_link(rank, 0, std::move(there));
      ranks.push_back(std::make_unique<RawPeer>(std::move(here)));
    }
  }
  // Rank 1 still gets the sum: `value` of rank 0, and 1 of its own.
  void check_sum(float value, uint32_t round = 1) {
    Header mine = push(kTensorBytes, 0, round);
    mine.rank = 1;
    ranks[1]->send(mine);
    const auto answer = ranks[1]->next_result();
    CHECK(answer->round == round && answer->rank == 1);
    CHECK_EQUAL(ranks[1]->first_value(), value + 1);
  }
  Server server;
  std::vector<std::unique_ptr<RawPeer>> ranks;
};

void check_server_hangs_up() {
  const std::vector<std::vector<Header>> wrong{
      {changed(push(), [](Header& h) { h.rank = 1; })},
      {changed(push(), [](Header& h) { h.tensor = 3; })},  // never installed
      {changed(push(), [](Header& h) { h.type = FrameType::result; })},
      {frame(FrameType::parked)},
      {push(kTensorBytes, 0, 2)},  // a round too far
      {push(kTensorBytes + 4)},    // beyond the end
      {push(kCellBytes, 2 * kCellBytes)},
      {push(4, 3 * kCellBytes)},
      {push(4, UINT32_MAX / kCellBytes * kCellBytes)},
      {push(kCellBytes - 4)},  // part of a cell
      {push(kCellBytes), changed(push(0), [](Header& h) { h.flags = kFlagEmpty; })},
      {changed(push(), [](Header& h) { h.flags = 64; })},  // no header at all
  };
  for (const auto& headers : wrong) {
    ServerUnderTest test;
    for (const Header& header : headers) test.ranks[0]->send(header);
    CHECK(test.ranks[0]->is_hung_up_on());
    test.server.depart(0);
    Header mine = push();
    mine.rank = 1;
    test.ranks[1]->send(mine);
    CHECK(test.ranks[1]->next()->type == FrameType::failed);
  }
}

void check_server_ignores_what_is_late() {
  ServerUnderTest test;
  RawPeer& peer = *test.ranks[0];
  peer.send(changed(push(), [](Header& h) { h.epoch = kEpoch - 1; }), 50);
  test.server.retire({2});
  peer.send(changed(push(4), [](Header& h) { h.tensor = 2; }), 50);
  peer.send(push(kCellBytes), 2);
  peer.send(push(kCellBytes), 50);  // again
  peer.send(push(kTensorBytes - kCellBytes, kCellBytes), 2);
  CHECK(peer.next()->type == FrameType::parked);
  peer.send(push(), 50);
  peer.send(changed(push(0), [](Header& h) { h.flags = kFlagEmpty; }));
  test.check_sum(2);
  CHECK(peer.next_result()->length == kTensorBytes && peer.first_value() == 3);
  peer.send(push(), 50);  // of a round that is over
  peer.send(changed(push(0, 0, 2), [](Header& h) { h.flags = kFlagEmpty | kFlagNoResult; }));
  test.check_sum(0, 2);
  CHECK_EQUAL(peer.next_result()->flags, kFlagDone);
}

// A worker that stops in the middle of a cell and goes holds nobody up but the round, and that until it has
// left.
void check_server_survives_a_half_cell() {
  ServerUnderTest test;
  test.ranks[0]->send_bytes(encode(push()));
  test.ranks[0]->send_bytes(std::vector<std::byte>(kCellBytes / 2));
  Header mine = push();
  mine.rank = 1;
  test.ranks[1]->send(mine);
  CHECK(test.ranks[1]->next()->type == FrameType::parked);
  test.ranks[0].reset();
  test.server.depart(0);
  const auto failed = test.ranks[1]->next();
  CHECK(failed->type == FrameType::failed && failed->rank == 0);
  CHECK_EQUAL(failed->code, static_cast<uint16_t>(Status::departed));
}

// Whoever is ahead is told that it waits for others only once they are not about to catch up; then those
// learn that they are waited for.
void check_server_tells_who_is_ahead_when_others_fall_idle() {
  ServerUnderTest test;
  test.server.install({{3, {}, {{0, 0, 4}}}});
  RawPeer& ahead = *test.ranks[0];
  RawPeer& behind = *test.ranks[1];
  const auto of = [](uint32_t tensor, uint32_t rank) {
    return changed(push(4), [=](Header& h) { h.tensor = tensor, h.rank = rank; });
  };
  ahead.send(of(2, 0));
  ahead.send(of(3, 0));
  behind.send(of(2, 1));  // what the other has sent before it
  CHECK(ahead.next_result()->tensor == 2 && behind.next_result()->tensor == 2);
  CHECK(!ahead.has_more(20));
  behind.send(changed(frame(FrameType::heartbeat), [](Header& h) { h.flags = kFlagIdle; }));
  CHECK(ahead.next()->tensor == 3);
  const auto wanted = behind.next();
  CHECK(wanted->type == FrameType::parked && wanted->tensor == 3 && wanted->rank == 1);
  CHECK_EQUAL(wanted->flags, kFlagWanted);
}

void check_server_keeps_the_first_link_of_a_rank() {
  ServerUnderTest test;
  auto [here, there] = tcp_links();
  test.server.add_link(0, 0, std::move(there));
  CHECK(RawPeer(std::move(here)).is_hung_up_on());
  test.ranks[0]->send(push(), 4);
  test.check_sum(4);
}

// A worker with one lane to server 5; the test is the server.
struct WorkerUnderTest {
  explicit WorkerUnderTest(const Lane::Options& lane = {Policy::priority, UINT64_MAX, kNoHeartbeatS, kEpoch})
      : worker({0, 1, lane, 1}), memory(kTensorBytes) {
    worker.declare(1, {{0, 5, 0, 0, kTensorBytes}});
    worker.declare(2, {{0, 5, 0, 0, 4}});
    worker.start();
    auto [here, there] = tcp_links();
    worker.add_link(5, 0, std::move(there));
    server.emplace(std::move(here));
    transfer = memory.submit(worker, 1);
    CHECK(server->next()->length == kTensorBytes);
  }
  Worker worker;
  Memory memory;
  std::optional<RawPeer> server;
  std::shared_ptr<Transfer> transfer;
};

void check_worker_hangs_up() {
  const Header result = frame(FrameType::result, kTensorBytes);
  const std::vector<Header> wrong{
      changed(result, [](Header& h) { h.rank = 1; }),
      changed(result, [](Header& h) { h.type = FrameType::push; }),
      frame(FrameType::result, kCellBytes, 2 * kCellBytes),  // beyond the end
      frame(FrameType::result, 8, UINT32_MAX / kCellBytes * kCellBytes),
      frame(FrameType::failed),  // without a reason
  };
  for (const Header& header : wrong) {
    WorkerUnderTest test;
    test.server->send(header);
    CHECK(outcome(*test.transfer) == Status::link_lost && test.transfer->peer() == 5);
    CHECK(test.memory.holds(-1) && test.server->is_hung_up_on());
  }
  WorkerUnderTest test;  // nobody asked for this result
  const auto wants_none = test.worker.submit(2, nullptr, nullptr, 0);
  test.server->send(changed(frame(FrameType::result, 4), [](Header& h) { h.tensor = 2; }));
  CHECK(outcome(*wants_none) == Status::link_lost && outcome(*test.transfer) == Status::link_lost);
}

// A server is silent, while its connection stays open; one that says something now and then is not.
void check_worker_gives_up_a_silent_server() {
  constexpr double kTimeoutS = 1;
  WorkerUnderTest test({Policy::priority, UINT64_MAX, kTimeoutS / 20, kEpoch, kTimeoutS});
  const auto start = Clock::now();
  for (uint32_t beats = 0; beats < 40; ++beats) {
    test.server->await_heartbeats(1);
    test.server->send(frame(FrameType::heartbeat));
  }
  CHECK(Clock::now() - start > std::chrono::duration<double>(kTimeoutS));
  CHECK(test.transfer->status() == Status::pending);
  CHECK(outcome(*test.transfer) == Status::link_lost && test.transfer->peer() == 5);
  CHECK(test.server->is_hung_up_on());
}

void check_worker_ignores_what_is_late() {
  WorkerUnderTest test;
  test.server->send(changed(frame(FrameType::result, kTensorBytes), [](Header& h) { h.epoch = kEpoch + 1; }),
                    50);
  test.server->send(frame(FrameType::result, kTensorBytes, 0, 7), 50);
  test.server->send(changed(frame(FrameType::result, kMaxPayloadBytes), [](Header& h) { h.tensor = 9; }), 50);
  test.server->send(frame(FrameType::parked));
  test.server->send(frame(FrameType::result, kTensorBytes), 3);
  CHECK(outcome(*test.transfer) == Status::ok && test.memory.holds(3));
}

// A transfer is not over while its memory is being received into.
void check_worker_keeps_memory_in_use() {
  WorkerUnderTest test;
  const std::vector<std::byte> half(kTensorBytes / 2);
  test.server->send_bytes(encode(frame(FrameType::result, kTensorBytes)));
  test.server->send_bytes(half);
  while (test.worker.bytes_received() < kHeaderBytes + half.size()) std::this_thread::yield();
  const auto second = test.worker.submit(2, nullptr, nullptr, 0);
  test.worker.retract(1);
  test.worker.retract(2);
  CHECK(outcome(*second) == Status::retracted);
  CHECK(test.transfer->status() == Status::pending);
  test.server->send_bytes(half);
  CHECK(outcome(*test.transfer) == Status::retracted);
}

}  // namespace

int main() {
  for (const auto check :
       {check_server_hangs_up, check_server_ignores_what_is_late, check_server_survives_a_half_cell,
        check_server_tells_who_is_ahead_when_others_fall_idle, check_server_keeps_the_first_link_of_a_rank,
        check_worker_hangs_up, check_worker_gives_up_a_silent_server, check_worker_ignores_what_is_late,
        check_worker_keeps_memory_in_use})
    check();
  return 0;
}
