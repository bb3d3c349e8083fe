// Native test of link.h: one conformance suite over every kind of link, or over those named as arguments.
#include "link.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>

#include "link_ends.h"

namespace {

using namespace byteps;

void check_order_both_ways(LinkMaker make) {
  Ends ends(make());
  auto& [here, there] = ends;
  for (int i = 0; i < 400; ++i) {
    CHECK(here.offer_some() != Link::kClosed && there.offer_some() != Link::kClosed);
    CHECK(there.take_some() != Link::kClosed && here.take_some() != Link::kClosed);
  }
  deliver(here, there);
  deliver(there, here);
  CHECK(here.sent > 100'000 && there.sent > 100'000);
}

// From single bytes to far more than any link holds: what is not taken is offered again.
void check_sizes(LinkMaker make) {
  Ends ends(make());
  auto& [here, there] = ends;
  for (const size_t length : {1u, 1u, 40u, 4096u, 65'536u, 65'576u, 1'000'003u, 8'000'000u, 1u}) {
    const size_t end = here.sent + length;
    while (here.sent < end) {
      const ssize_t n = here.offer(end - here.sent);
      CHECK(n >= 0);
      if (n == 0) deliver(here, there);
    }
    deliver(here, there);
  }
}

// As many pieces as a lane ever gives at once, each of them far from the others in memory.
void check_many_pieces(LinkMaker make) {
  constexpr size_t kPieces = 128, kBytes = 100;
  Ends ends(make());
  std::vector<std::byte> from(2 * kPieces * kBytes), to(from.size());
  std::vector<iovec> out, in;
  for (size_t i = 0; i < kPieces; ++i) {
    std::memset(&from[2 * i * kBytes], static_cast<int>(i) + 1, kBytes);
    out.push_back({&from[2 * i * kBytes], kBytes});
    in.push_back({&to[2 * i * kBytes], kBytes});
  }
  CHECK_EQUAL(ends.here.link->send(out.data(), kPieces), ssize_t{kPieces * kBytes});
  size_t done = 0;
  while (done < kPieces * kBytes) {
    std::vector<iovec> left(in.begin() + static_cast<ptrdiff_t>(done / kBytes), in.end());
    left[0].iov_base = static_cast<std::byte*>(left[0].iov_base) + done % kBytes;
    left[0].iov_len -= done % kBytes;
    const ssize_t n = ends.there.link->receive(left.data(), static_cast<int>(left.size()));
    CHECK(n >= 0);
    if (n == 0) wait_for_news(ends.here, ends.there);
    done += static_cast<size_t>(n);
  }
  CHECK(from == to);
}

// Each end on its own thread, each waiting for the event that the link promises. More is offered than there
// is room for, while room is made.
void check_events_between_threads(LinkMaker make) {
  constexpr size_t kTotal = 64 << 20, kOffer = 400'000;
  Ends ends(make());
  std::atomic<bool> is_here = false;
  std::thread sender([&here = ends.here, &is_here] {
    while (here.sent < kTotal) {
      if (here.offer(kOffer) == 0) CHECK(here.writable(kPatienceMs));
    }
    while (!is_here) {
      if (here.readable(kQuietMs)) here.drain();
    }
  });
  while (ends.there.received < kTotal) {
    if (ends.there.take_some() == 0) CHECK(ends.there.readable(kPatienceMs));
  }
  is_here = true;
  sender.join();
}

// Small messages to and fro: whoever waits is woken each time.
void check_wake_ups(LinkMaker make) {
  constexpr size_t kRounds = 3000, kBytes = 100;
  Ends ends(make());
  const auto play = [](End& end, bool begins) {
    for (size_t i = 0; i < kRounds; ++i) {
      if (begins || i > 0) CHECK_EQUAL(end.offer(kBytes), ssize_t{kBytes});
      while (end.received < (i + 1) * kBytes) {
        const ssize_t n = end.take(4 * kBytes);
        CHECK(n > 0 || (n == 0 && end.readable(kPatienceMs)));
      }
    }
    if (!begins) CHECK_EQUAL(end.offer(kBytes), ssize_t{kBytes});
  };
  std::thread other([&] { play(ends.there, false); });
  play(ends.here, true);
  other.join();
}

void check_readiness(LinkMaker make) {
  Ends ends(make());
  auto& [here, there] = ends;
  CHECK_EQUAL(here.take_some(), 0);
  CHECK_EQUAL(there.take_some(), 0);
  CHECK(here.writable() && !here.readable() && !there.readable());
  CHECK(here.offer(40'000) > 30'000);
  CHECK(there.readable(kPatienceMs) && !here.readable());
  while (there.take_some() == 0) wait_for_news(here, there);
  CHECK(there.readable(kPatienceMs));  // there is more
  deliver(here, there);
  CHECK_EQUAL(there.take_some(), 0);
  CHECK(!there.readable());
}

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

template <typename Wait>
void check_sleeps(const Wait& wait) {
  const double before_s = cpu_seconds();
  wait();
  CHECK(cpu_seconds() - before_s < 0.5e-3 * kQuietMs);
}

// Nothing to do shows no event, whether nothing was sent or the other end is full: a loop sleeps then.
void check_idleness(LinkMaker make) {
  Ends ends(make());
  End &here = ends.here, &there = ends.there;
  CHECK(here.offer_some() > 0);
  deliver(here, there);
  CHECK(there.offer_some() > 0);
  deliver(there, here);
  // What each tells the other after that may be an event, too, but only a few times.
  for (int i = 0; i < 3; ++i) {
    for (End* end : {&here, &there}) {
      if (end->readable(kQuietMs)) end->drain();
    }
  }
  check_sleeps([&] { CHECK(!here.readable(kQuietMs) && !there.readable(kQuietMs)); });
  here.fill();
  check_sleeps([&] { CHECK(!here.writable(kQuietMs) && !here.readable(kQuietMs)); });
}

void check_backpressure(LinkMaker make) {
  Ends ends(make());
  auto& [here, there] = ends;
  here.link->set_low_water(16'384);
  here.fill();
  CHECK(here.sent > 0 && !here.writable());
  CHECK(here.link->unsent() <= here.sent);
  CHECK(here.link->queued().bytes >= here.link->unsent());
  while (!here.writable()) {
    if (there.take_some() == 0) wait_for_news(here, there);
  }
  CHECK(here.link->unsent() < 16'384);
  CHECK(here.offer_some() > 0);
  deliver(here, there);
  there.drain();
  while (here.link->unsent() > 0) {
    CHECK(here.readable(kPatienceMs));
    here.drain();
  }
}

// No more comes, which shows, and stays.
void check_ends(End& end) {
  while (end.take_some() == 0) CHECK(end.readable(kPatienceMs));
  for (int i = 0; i < 3; ++i) CHECK_EQUAL(end.take_some(), Link::kClosed);
  CHECK(end.readable());
}

// Everything that was sent arrives; then the end of the link shows, and stays.
void check_close(LinkMaker make) {
  Ends ends(make());
  auto& [here, there] = ends;
  CHECK(here.offer_some() > 0 && here.offer_some() >= 0);
  close_end(here, there);
  check_ends(there);
  while (there.offer_some() != Link::kClosed) CHECK(there.writable(kPatienceMs));
  for (int i = 0; i < 3; ++i) CHECK_EQUAL(there.offer_some(), Link::kClosed);
  CHECK(there.writable());
}

// Closed by an end that has not read all that was sent to it.
void check_close_with_unread_bytes(LinkMaker make) {
  Ends ends(make());
  auto& [here, there] = ends;
  CHECK(there.offer_some() > 0 && here.offer_some() > 0);
  for (int i = 0; !here.readable(1) || !there.readable(1); ++i) {
    CHECK(i < kPatienceMs);
    here.offer(0);  // a link may have to go on sending, which must not be by reading here
    there.offer(0);
  }
  close_end(here, there);
  check_ends(there);
}

// Closed while the other end waits for room.
void check_close_while_blocked(LinkMaker make) {
  Ends ends(make());
  auto& [here, there] = ends;
  here.fill();
  CHECK(!here.writable());
  there.link.reset();
  CHECK(here.writable(kPatienceMs) && here.readable(kPatienceMs));
  CHECK_EQUAL(here.offer_some(), Link::kClosed);
  CHECK_EQUAL(here.take_some(), Link::kClosed);
}

size_t open_descriptors() {
  const std::filesystem::directory_iterator found("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(found), end(found)));
}

void check_nothing_is_left(LinkMaker make) {
  const size_t before = open_descriptors();
  for (int i = 0; i < 3; ++i) {
    Ends ends(make());
    CHECK(ends.here.offer_some() > 0);
    if (i == 1) ends.there.link.reset();
  }
  CHECK_EQUAL(open_descriptors(), before);
}

// A child inherits an end and gives it up. The other end sees the parent's close though the child lives on,
// and before it nothing of what the child did.
void check_abandoned_by_a_child(LinkMaker make) {
  Ends ends(make());
  auto& [here, there] = ends;
  int alive[2];
  CHECK(pipe(alive) == 0);
  const pid_t child = fork();
  if (child == 0) {
    here.link->abandon();
    there.link->abandon();
    close(alive[1]);
    char nothing;
    _exit(read(alive[0], &nothing, 1) == 0 ? 0 : 1);
  }
  CHECK(child > 0 && close(alive[0]) == 0);
  CHECK_EQUAL(there.take_some(), 0);
  CHECK(here.offer_some() > 0);
  close_end(here, there);
  check_ends(there);
  int status = 0;
  CHECK(close(alive[1]) == 0 && waitpid(child, &status, 0) == child && status == 0);
}

void check(const LinkKind& kind) {
  for (const auto behaves :
       {check_order_both_ways, check_sizes, check_many_pieces, check_events_between_threads, check_wake_ups,
        check_readiness, check_idleness, check_backpressure, check_close, check_close_with_unread_bytes,
        check_close_while_blocked, check_nothing_is_left, check_abandoned_by_a_child}) {
    behaves(kind.make);
  }
  std::printf("%s: conforms\n", kind.name);
  std::fflush(stdout);  // before a child inherits it
}

// Through sockets, a chunk leaves without its receiver having to ask for it.
void check_leaves_at_once() {
  Ends ends(ucx_tcp_links());
  std::vector<std::byte> chunk(65'536);
  const iovec part{chunk.data(), chunk.size()};
  CHECK(ends.here.link->send(&part, 1) == static_cast<ssize_t>(chunk.size()));
  for (int i = 0; i < 100 && ends.here.link->in_use() > 0; ++i) {
    if (ends.here.readable(kQuietMs)) ends.here.drain();
  }
  CHECK(ends.here.link->in_use() == 0);
}

}  // namespace

int main(int count, char** names) {
  const auto is_named = [&](const LinkKind& kind) {
    return std::any_of(names + 1, names + count,
                       [&](const char* name) { return std::strcmp(name, kind.name) == 0; });
  };
  for (const std::span<const LinkKind> kinds : {std::span<const LinkKind>(kLinkKinds), ucx_kinds()}) {
    for (const LinkKind& kind : kinds) {
      if (count == 1 || is_named(kind)) check(kind);
    }
  }
  if (count == 1 && ucx_is_built()) check_leaves_at_once();
  if (is_named(kVerbsKind)) check(kVerbsKind);
  return 0;
}
