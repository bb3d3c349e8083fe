// One peer, as a stream of bytes with a readiness event. Sockets, shared memory and links within a process
// implement it and pass the same conformance test; RDMA fits in behind it. A link never chooses what to send.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace byteps {

class SumMemory;

class Link {
 public:
  static constexpr ssize_t kClosed = -1;

  virtual ~Link() = default;
  Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Both never block. They return the bytes moved (a prefix of the parts), 0 if nothing can be moved now, or
  // kClosed when the peer is gone: for good in this direction, and on receive only after all that it sent.
  // After 0, receive() may go on writing to the first part: the next calls give it what is left of the same
  // one. What send() took stays as it is until it is no longer `in_use`.
  virtual ssize_t send(const iovec* parts, int count) = 0;
  virtual ssize_t receive(const iovec* parts, int count) = 0;

  // What receive() would give next, as far as it lies in one piece in memory of the link's own; it stays
  // there until it is skipped. Links without such memory show nothing.
  virtual std::span<const std::byte> peek() { return {}; }
  virtual void skip(size_t) {}

  // Descriptors for epoll: `read_fd` is readable when receive() has something, and then until it has said
  // that it has nothing; `write_fd` shows `write_event` (EPOLLIN or EPOLLOUT) when send() takes something
  // again after it took less than all. A peer that is gone shows on both. TCP uses one descriptor for both.
  virtual int read_fd() const = 0;
  virtual int write_fd() const = 0;
  virtual uint32_t write_event() const = 0;

  // Bytes taken by send() that the link has not sent yet.
  virtual size_t unsent() const = 0;

  // Those, and what waits in the host's own queue in front of the network: `at_device`, where the bytes of
  // all links stand in one line, if that is known.
  struct Queued {
    size_t bytes = 0;
    size_t at_device = 0;
  };
  virtual Queued queued() const = 0;

  // The last so many of the bytes taken by send() are still read from the caller's memory.
  virtual size_t in_use() const { return 0; }

  // The write event is raised once fewer than this many bytes are unsent. Called before each wait for it.
  virtual void set_low_water(size_t bytes) = 0;

  // In a forked child, which never destroys the link: closes the child's copies of its descriptors, so that
  // the peer sees the parent's end, and touches nothing that the child shares with others.
  virtual void abandon() = 0;
};

// Adopts a connected stream socket and makes it non-blocking. The link closes it. Throws
// std::invalid_argument for any other descriptor, which stays the caller's.
std::unique_ptr<Link> make_socket_link(int fd);

// Two ends of a pipe within this process, each way with room for `capacity` bytes (at least one).
std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> make_inproc_links(size_t capacity = 1 << 20);

// What two processes of one host share: sealed memory of two rings of equal size, and events (see eventfd)
// that say, for the way from the first process to the second and then for the way back: there is data, there
// is room.
struct SharedMemory {
  int memory = -1;
  std::array<int, 4> events{-1, -1, -1, -1};
  int sums = -1;  // the first process's SumMemory, from which the second one reads; -1: there is none
};

// Both throw std::system_error where something is short. The descriptors are the caller's.
SharedMemory create_shared_memory(size_t ring_bytes);  // rounded up to whole pages

// The link of one of the two processes, which closes all the descriptors. `lifeline` is a connection between
// the two that carries nothing any more: its end is the link's. What the first one sends out of `sums` is
// lent: the other reads it there, and until then it is in use. Throws std::invalid_argument for memory that
// is not as it should be; after any exception the descriptors stay the caller's.
std::unique_ptr<Link> make_shared_memory_link(const SharedMemory& shared, bool is_first, int lifeline,
                                              std::shared_ptr<const SumMemory> sums = nullptr);

}  // namespace byteps
