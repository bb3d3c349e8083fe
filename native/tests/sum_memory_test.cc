// Native test of sum_memory.h and shared_way.h: memory that a server's sums lie in, and links that lend it.
#include "sum_memory.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>

#include <cstring>
#include <random>
#include <system_error>
#include <vector>

#include "job.h"
#include "shared_way.h"
#include "wire.h"

namespace {

using namespace byteps;

constexpr size_t kBlocks = 8;
constexpr size_t kBytes = kBlocks * kCellBytes;

void check_blocks() {
  SumMemory memory(kBytes);
  std::byte* const first = memory.take(1);
  std::byte* const second = memory.take(2 * kCellBytes);
  std::byte* const third = memory.take(5 * kCellBytes);
  CHECK(second == first + kCellBytes && third == second + 2 * kCellBytes);
  CHECK(memory.take(1) == nullptr);
  memory.give_back(second, 2 * kCellBytes);
  CHECK(memory.take(3 * kCellBytes) == nullptr);
  CHECK(memory.take(kCellBytes + 1) == second);
  CHECK_EQUAL(memory.offset_of(third, 5 * kCellBytes).value(), uint64_t{3 * kCellBytes});
  CHECK(!memory.offset_of(third, 5 * kCellBytes + 1) && !memory.offset_of(first - 1, 1));
}

// Who gets the descriptor can read what is written later, and neither write nor cut off.
void check_nobody_else_writes() {
  SumMemory memory(kBytes);
  const auto map = [&](int protection) {
    return mmap(nullptr, kBytes, protection, MAP_SHARED, memory.fd(), 0);
  };
  CHECK(map(PROT_READ | PROT_WRITE) == MAP_FAILED);
  CHECK(ftruncate(memory.fd(), 0) != 0 && pwrite(memory.fd(), "x", 1, 0) < 0);
  void* const seen = map(PROT_READ);
  CHECK(seen != MAP_FAILED && mprotect(seen, kBytes, PROT_READ | PROT_WRITE) != 0);
  *memory.take(1) = std::byte{7};
  CHECK(*static_cast<std::byte*>(seen) == std::byte{7});
  CHECK(munmap(seen, kBytes) == 0);
}

struct Lending {
  Lending() {
    data = sums->take(kBytes);
    for (size_t i = 0; i < kBytes; ++i) data[i] = static_cast<std::byte>(i * 7 + i / 251);
    std::tie(lender, reader) = lending_links(sums);
  }
  ssize_t send(const std::byte* from, size_t bytes) const {
    const iovec part{const_cast<std::byte*>(from), bytes};
    return lender->send(&part, 1);
  }
  ssize_t receive(size_t bytes) {
    received.assign(bytes, std::byte{});
    const iovec part{received.data(), bytes};
    const ssize_t n = reader->receive(&part, 1);
    received.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return n;
  }

  std::shared_ptr<SumMemory> sums = std::make_shared<SumMemory>(kBytes);
  std::byte* data;
  std::unique_ptr<Link> lender, reader;
  std::vector<std::byte> received;
};

// Lent bytes are those of the moment in which they are read, and in use until then.
void check_lent_until_read() {
  Lending link;
  CHECK_EQUAL(link.send(link.data, 50'000), ssize_t{50'000});
  CHECK_EQUAL(link.lender->in_use(), size_t{50'000});
  link.data[49'999] = std::byte{99};
  CHECK_EQUAL(link.receive(40'000), ssize_t{40'000});
  CHECK_EQUAL(link.lender->in_use(), size_t{50'000});
  CHECK_EQUAL(link.lender->unsent(), size_t{10'000});
  CHECK_EQUAL(link.receive(40'000), ssize_t{10'000});
  CHECK(link.received.back() == std::byte{99});
  CHECK_EQUAL(link.lender->in_use(), size_t{0});
  const std::vector<std::byte> other(50'000, std::byte{1});  // lies elsewhere: copied
  CHECK_EQUAL(link.send(other.data(), other.size()), ssize_t{50'000});
  CHECK_EQUAL(link.lender->in_use(), size_t{0});
}

// Of short and long pieces, here and there, all come in order; more wait than there is room for loans or
// bytes.
void check_order() {
  Lending link;
  std::mt19937 random(1);
  std::vector<std::byte> sent, received;
  for (int turn = 0; turn < 3000; ++turn) {
    if (random() % 2 == 0) {
      const size_t offset = random() % kBytes, most = random() % 3 == 0 ? 100 : 60'000;
      std::vector<std::byte> piece(link.data + offset,
                                   link.data + offset + random() % most % (kBytes - offset));
      const bool lent = random() % 2 == 0;
      const ssize_t n = link.send(lent ? link.data + offset : piece.data(), piece.size());
      CHECK(n >= 0);
      sent.insert(sent.end(), piece.begin(), piece.begin() + n);
    } else {
      CHECK(link.receive(random() % 40'000 + 1) >= 0);
      received.insert(received.end(), link.received.begin(), link.received.end());
    }
  }
  while (link.receive(100'000) > 0)
    received.insert(received.end(), link.received.begin(), link.received.end());
  CHECK(sent.size() > 10'000'000 && received == sent);
  CHECK(link.lender->in_use() == 0 && link.lender->unsent() == 0);
}

// A lender that goes uses its memory for something else: whoever has not read it sees the end, not that.
void check_withdrawn() {
  Lending link;
  const std::vector<std::byte> copied(100, std::byte{1});
  CHECK(link.send(copied.data(), copied.size()) == 100 && link.send(link.data, 50'000) == 50'000);
  link.lender.reset();
  std::memset(link.data, 0, kBytes);
  CHECK_EQUAL(link.receive(1000), ssize_t{100});
  CHECK_EQUAL(link.receive(1000), Link::kClosed);
}

// What the lender's process says of its loans is not believed.
void check_loans_that_cannot_be() {
  struct Claim {
    uint64_t written, position, offset, bytes;
  };
  const std::vector<std::byte> lent(kCellBytes);
  for (const Claim claim :
       {Claim{10, 0, 0, 0}, Claim{10, 0, kCellBytes, 1}, Claim{10, 0, 1, kCellBytes},
        Claim{10, 0, UINT64_MAX, 2}, Claim{10, 0, 2, UINT64_MAX}, Claim{UINT64_MAX, UINT64_MAX - 1, 0, 1}}) {
    const SharedMemory shared = create_shared_memory(4096);
    const Mapping control(4096, PROT_READ | PROT_WRITE, MAP_SHARED, shared.memory, 0);
    Way& way = *reinterpret_cast<Way*>(control.data());
    way.loans[0].position.store(claim.position);
    way.loans[0].offset.store(claim.offset);
    way.loans[0].bytes.store(claim.bytes);
    way.lent.store(1);
    way.written.store(claim.written);
    WayIn in(way, shared.memory, 4096, 4096, lent);
    std::byte to[16];
    CHECK(in.take(to, sizeof to) == 0 && in.is_broken());
    for (const int fd :
         {shared.memory, shared.events[0], shared.events[1], shared.events[2], shared.events[3]})
      close(fd);
  }
}

void check_memory_that_is_not_sealed() {
  const int fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  SharedMemory shared = create_shared_memory(4096);
  shared.sums = fd;
  bool refused = false;
  try {
    make_shared_memory_link(shared, false, -1);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
  for (const int one :
       {fd, shared.memory, shared.events[0], shared.events[1], shared.events[2], shared.events[3]})
    close(one);
}

// More results wait for a worker than the memory holds: the others are copied.
void check_more_than_there_is_room_for() {
  constexpr uint64_t kLarge = 48 << 20;
  Shape shape;
  shape.make = shared_memory_links;
  shape.credit_bytes = kLarge;
  Job job(shape);
  job.declare(1, kLarge, 4 << 20);
  for (int round = 0; round < 2; ++round) {
    Memory first(kLarge, 1), second(kLarge, 2);
    const auto one = first.submit(*job.workers[0], 1), other = second.submit(*job.workers[1], 1);
    CHECK(outcome(*one) == Status::ok && outcome(*other) == Status::ok);
    CHECK(first.holds(3) && second.holds(3));
  }
}

}  // namespace

int main() {
  check_blocks();
  check_nobody_else_writes();
  check_lent_until_read();
  check_order();
  check_withdrawn();
  check_loans_that_cannot_be();
  check_memory_that_is_not_sealed();
  check_more_than_there_is_room_for();
  return 0;
}
