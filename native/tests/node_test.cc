// Native test of sums within a node: workers that share segments, and neighbours that break the rules.
#include <sys/mman.h>
#include <unistd.h>

#include "job.h"
#include "node_lane.h"
#include "raw_peer.h"

namespace {

using namespace byteps;

constexpr size_t kPiece = 4096;
constexpr uint32_t kFirstNeighbour = 8;

// Ranks of one node, without a server.
struct Neighbours {
  explicit Neighbours(uint32_t size, uint32_t lanes = 1) {
    std::vector<uint32_t> ranks;
    std::vector<int> segments;
    for (uint32_t place = 0; place < size; ++place) {
      ranks.push_back(place);
      segments.push_back(memfd_create("test", MFD_CLOEXEC));
      CHECK(ftruncate(segments.back(), lanes * Node::kSlots * size * kPiece) == 0);
    }
    const Lane::Options lane{Policy::priority, 1 << 20, kNoHeartbeatS};
    for (uint32_t place = 0; place < size; ++place) {
      workers.push_back(std::make_unique<Worker>(Worker::Options{place, lanes, lane, 1}));
      workers.back()->start();
      workers.back()->join_node(std::make_shared<Node>(place, ranks, segments, lanes, kPiece),
                                kFirstNeighbour);
    }
    for (const int segment : segments) close(segment);
  }

  void connect() {
    for (uint32_t place = 0; place < workers.size(); ++place) {
      for (uint32_t other = 0; other < place; ++other) {
        auto [here, there] = inproc_links();
        workers[place]->add_neighbour(other, 0, std::move(here));
        workers[other]->add_neighbour(place, 0, std::move(there));
      }
    }
  }

  void declare(uint32_t tensor, uint64_t bytes, uint64_t partition_bytes) {
    NodePlan plan{{}, 1, false, {}};
    for (uint32_t place = 0; place < workers.size(); ++place) plan.places.push_back(place);
    std::vector<PartRef> parts;
    for (uint64_t offset = 0; offset < bytes; offset += partition_bytes) {
      const auto index = static_cast<uint32_t>(parts.size());
      parts.push_back({index, 0, 0, offset, std::min(partition_bytes, bytes - offset)});
    }
    for (auto& worker : workers) worker->declare(tensor, parts, std::make_shared<NodePlan>(plan));
  }

  std::vector<std::unique_ptr<Worker>> workers;
};

// More pieces than slots, and partitions that are no multiple of a piece.
void test_values() {
  for (const uint32_t size : {2u, 3u, 5u}) {
    Neighbours node(size);
    node.connect();
    constexpr size_t kBytes = 100 * kPiece + 12;
    node.declare(1, kBytes, 12 * kPiece + 20);
    for (int round = 0; round < 3; ++round) {
      std::vector<Memory> memory(size, Memory(kBytes));
      std::vector<std::shared_ptr<Transfer>> transfers;
      for (uint32_t i = 0; i < size; ++i) transfers.push_back(memory[i].submit(*node.workers[i], 1));
      for (uint32_t i = 0; i < size; ++i) {
        CHECK(outcome(*transfers[i]) == Status::ok);
        CHECK(memory[i].holds(static_cast<float>(size)));
      }
    }
  }
}

// As a server sums: every type, more terms than are added at once, over one of them.
void test_arithmetic() {
  constexpr size_t kElements = 20001;
  for (size_t t = 0; t < kDTypes; ++t) {
    const auto dtype = static_cast<DType>(t);
    const size_t bytes = kElements * wire_size(dtype);
    for (size_t count = 1; count <= kMostTerms + 2; ++count) {
      for (const auto& [op, prescale, divisor] :
           {std::tuple(Op::sum, 1.0, 1u), {Op::average, 1.0, 3u}, {Op::sum, 0.5, 1u}, {Op::min, 1.0, 1u}}) {
        std::vector<std::vector<std::byte>> terms(count, std::vector<std::byte>(bytes));
        std::vector<const std::byte*> in;
        uint32_t seed = 1;
        for (auto& term : terms) {  // small numbers in every type
          for (auto& byte : term) byte = static_cast<std::byte>((seed = seed * 1664525 + 1013904223) >> 26);
          in.push_back(term.data());
        }
        std::vector<std::byte> sum(kElements * accumulator_size(dtype, op)), also(bytes);
        widen(dtype, op, sum.data(), in[0], kElements, prescale);
        for (size_t i = 1; i < count; ++i) accumulate(dtype, op, sum.data(), in[i], kElements, prescale);
        finish(dtype, op, sum.data(), sum.data(), kElements, 1.0, divisor);
        sum.resize(bytes);
        NodePlan plan{{dtype, op, prescale, 1.0}, divisor, false, {}};
        sum_contributions(plan, in, terms.back().data(), also.data(), bytes);
        CHECK(terms.back() == sum && also == sum);
      }
    }
  }
}

// What one rank gives up does not hold up the other tensors, though slots were full of it.
void test_retraction() {
  Neighbours node(2);
  node.connect();
  node.declare(1, 64 * kPiece, 64 * kPiece);
  node.declare(2, 64 * kPiece, 32 * kPiece);
  Memory first(64 * kPiece), second(64 * kPiece), third(64 * kPiece);
  const auto given_up = first.submit(*node.workers[0], 1);
  for (auto& worker : node.workers) worker->retract(1);
  CHECK(outcome(*given_up) == Status::retracted);
  CHECK(outcome(*second.submit(*node.workers[1], 1)) == Status::retracted);
  const auto here = second.submit(*node.workers[0], 2);
  CHECK(outcome(*third.submit(*node.workers[1], 2)) == Status::ok);
  CHECK(outcome(*here) == Status::ok && third.holds(2));
}

void test_departure() {
  Neighbours node(3);
  node.connect();
  node.declare(1, 8 * kPiece, kPiece);
  std::vector<Memory> memory(3, Memory(8 * kPiece));
  std::vector<std::shared_ptr<Transfer>> transfers;
  for (uint32_t i = 0; i < 2; ++i) transfers.push_back(memory[i].submit(*node.workers[i], 1));
  CHECK(node.workers[0]->missing(1).contains(2));
  for (uint32_t i = 0; i < 2; ++i) node.workers[i]->depart(2);
  for (const auto& transfer : transfers) {
    CHECK(outcome(*transfer) == Status::departed);
    CHECK_EQUAL(transfer->peer(), 2u);
  }
  // Also what is submitted only now, in whichever order.
  const auto again = memory[1].submit(*node.workers[1], 1);
  CHECK(outcome(*memory[0].submit(*node.workers[0], 1)) == Status::departed);
  CHECK(outcome(*again) == Status::departed);
}

Header step(LocalStep what, uint32_t offset, int32_t number, uint32_t partition = 1) {
  Header header{FrameType::local, 0, 1, partition, 1, 0, offset, 0, number};
  header.code = static_cast<uint16_t>(what);
  return header;
}

// Whatever a neighbour sends, nothing outside of the memory meant for it is touched, and it is said who it
// was.
void test_neighbours_that_break_the_rules() {
  Header push{FrameType::push, 0, 1, 0, 1};
  push.length = 4;
  const std::vector<Header> wrong{
      step(LocalStep::grant, 0, Node::kSlots),        step(LocalStep::grant, 0, -1),
      step(LocalStep::result, 3 * kPiece, 0),         step(LocalStep::result, 0, INT32_MAX),
      step(LocalStep::failed, 0, 1 /* that is ok */), push,
  };
  for (const Header& header : wrong) {
    Neighbours node(2);
    auto [here, there] = inproc_links();
    node.workers[0]->add_neighbour(1, 0, std::move(here));
    node.declare(1, 6 * kPiece, 3 * kPiece);  // partition 1 is the neighbour's
    Memory memory(6 * kPiece);
    const auto transfer = memory.submit(*node.workers[0], 1);
    RawPeer peer(std::move(there));
    peer.send(header);
    CHECK(outcome(*transfer) == Status::link_lost);
    CHECK_EQUAL(transfer->peer(), kFirstNeighbour + 1);
  }
}

// The next piece may be there before the last result has been taken from its slot: it is added up only then.
void test_a_result_stays_until_it_is_taken() {
  Neighbours node(2);
  auto [here, there] = inproc_links();
  node.workers[0]->add_neighbour(1, 0, std::move(here));
  node.declare(1, 2 * (Node::kSlots + 1) * kPiece, (Node::kSlots + 1) * kPiece);
  Memory memory(2 * (Node::kSlots + 1) * kPiece);
  const auto transfer = memory.submit(*node.workers[0], 1);
  RawPeer peer(std::move(there));
  const auto next = [&](LocalStep expected) {
    const auto header = peer.next();
    CHECK(header && header->code == static_cast<uint16_t>(expected));
    return header->offset;
  };
  next(LocalStep::begun);  // partition 1
  peer.send(step(LocalStep::begun, 0, 0, 0));
  for (uint32_t slot = 0; slot < Node::kSlots; ++slot) CHECK_EQUAL(next(LocalStep::grant), slot * kPiece);
  peer.send(step(LocalStep::put, 0, 0, 0));
  CHECK_EQUAL(next(LocalStep::result), 0u);
  CHECK_EQUAL(next(LocalStep::grant), Node::kSlots * kPiece);
  peer.send(step(LocalStep::put, Node::kSlots * kPiece, 0, 0));
  CHECK(!peer.has_more(20));
  peer.send(step(LocalStep::taken, 0, 0, 0));
  CHECK_EQUAL(next(LocalStep::result), Node::kSlots * kPiece);
}

void test_segments_that_are_too_short() {
  const int segment = memfd_create("test", MFD_CLOEXEC);
  CHECK(ftruncate(segment, kPiece) == 0);
  bool refused = false;
  try {
    Node(0, {0, 1}, {segment, segment}, 1, kPiece);
  } catch (const std::runtime_error&) {
    refused = true;
  }
  close(segment);
  CHECK(refused);
}

}  // namespace

int main() {
  for (const auto test :
       {test_values, test_arithmetic, test_retraction, test_departure, test_neighbours_that_break_the_rules,
        test_a_result_stays_until_it_is_taken, test_segments_that_are_too_short})
    test();
  return 0;
}
