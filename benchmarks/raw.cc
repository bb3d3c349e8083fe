// The limit: plain blocking sockets that move the bytes of a push_pull and do nothing else.
//
//   raw server ADDRESS WORKERS      prints its port; serves WORKERS connections until they are closed
//   raw worker ADDRESS:PORT...      reads lines {"nbytes": N, "repeats": R}; answers each with R times in seconds
//
// In one exchange a worker sends N bytes in equal shares to the servers while each server sends it as many back. Both
// directions of each connection have a thread of their own, which sends or receives one block of memory over and over.
// What is too small to be shared goes to the first server and back, without a change of threads.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t kBlockBytes = 512 << 10;
constexpr size_t kSmallBytes = 64 << 10;

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

int tuned(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
  return fd;
}

sockaddr_in address_of(const std::string& host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) fail("address");
  return address;
}

ssize_t put(int fd, char* memory, size_t nbytes) { return send(fd, memory, nbytes, MSG_NOSIGNAL); }
ssize_t take(int fd, char* memory, size_t nbytes) { return recv(fd, memory, nbytes, MSG_WAITALL); }
using Call = decltype(put);

class Block {
 public:
  // Sends or receives `nbytes` through this block; false when the connection is closed.
  bool move(Call* call, int fd, size_t nbytes) {
    while (nbytes > 0) {
      const ssize_t n = call(fd, memory_.data(), std::min(memory_.size(), nbytes));
      if (n <= 0) return false;
      nbytes -= static_cast<size_t>(n);
    }
    return true;
  }

 private:
  std::vector<char> memory_ = std::vector<char>(kBlockBytes);
};

bool put_head(int fd, uint64_t nbytes) { return put(fd, reinterpret_cast<char*>(&nbytes), sizeof nbytes) > 0; }
bool take_head(int fd, uint64_t& nbytes) { return take(fd, reinterpret_cast<char*>(&nbytes), sizeof nbytes) > 0; }

// One connection of a server. Its two threads learn from the head of each exchange how long it is.
void serve(int fd) {
  Block incoming;
  uint64_t nbytes = 0;
  bool open = true;
  std::barrier begin(2), end(2);
  std::thread sender([&] {
    for (Block outgoing;;) {
      begin.arrive_and_wait();
      if (!open) return;
      outgoing.move(put, fd, nbytes);
      end.arrive_and_wait();
    }
  });
  while (take_head(fd, nbytes)) {
    if (nbytes <= kSmallBytes) {
      if (!incoming.move(take, fd, nbytes) || !incoming.move(put, fd, nbytes)) break;
      continue;
    }
    begin.arrive_and_wait();
    incoming.move(take, fd, nbytes);
    end.arrive_and_wait();
  }
  open = false;
  begin.arrive_and_wait();
  sender.join();
  close(fd);
}

int run_server(const std::string& host, int workers) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = address_of(host, 0);
  socklen_t length = sizeof address;
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(listener, 16) != 0) fail("listen");
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  std::vector<std::thread> threads;
  for (int i = 0; i < workers; ++i) {
    const int fd = accept(listener, nullptr, nullptr);
    if (fd < 0) fail("accept");
    threads.emplace_back(serve, tuned(fd));
  }
  for (auto& thread : threads) thread.join();
  return 0;
}

class Worker {
 public:
  explicit Worker(std::vector<int> fds)
      : fds_(std::move(fds)), begin_(participants()), end_(participants()) {
    for (size_t i = 0; i < fds_.size(); ++i) {
      threads_.emplace_back(&Worker::loop, this, i, true);
      threads_.emplace_back(&Worker::loop, this, i, false);
    }
  }
  ~Worker() {
    open_ = false;
    begin_.arrive_and_wait();
    for (auto& thread : threads_) thread.join();
  }
  double exchange(size_t nbytes) {
    const auto began = std::chrono::steady_clock::now();
    if (nbytes <= kSmallBytes) {
      const bool sent = put_head(fds_[0], nbytes) && block_.move(put, fds_[0], nbytes);
      if (!sent || !block_.move(take, fds_[0], nbytes)) fail("connection");
    } else {
      nbytes_ = nbytes;
      begin_.arrive_and_wait();
      end_.arrive_and_wait();
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }

 private:
  ptrdiff_t participants() const { return 1 + 2 * static_cast<ptrdiff_t>(fds_.size()); }
  void loop(size_t index, bool sends) {
    for (Block block;;) {
      begin_.arrive_and_wait();
      if (!open_) return;
      const size_t share = nbytes_ * (index + 1) / fds_.size() - nbytes_ * index / fds_.size();
      const bool moved = sends ? put_head(fds_[index], share) && block.move(put, fds_[index], share)
                               : block.move(take, fds_[index], share);
      if (!moved) fail("connection");
      end_.arrive_and_wait();
    }
  }

  const std::vector<int> fds_;
  Block block_;
  size_t nbytes_ = 0;
  bool open_ = true;
  std::barrier<> begin_, end_;
  std::vector<std::thread> threads_;
};

int run_worker(const std::vector<std::string>& servers) {
  std::vector<int> fds;
  for (const auto& server : servers) {
    const size_t colon = server.rfind(':');
    const sockaddr_in address = address_of(server.substr(0, colon), std::atoi(server.c_str() + colon + 1));
    fds.push_back(tuned(socket(AF_INET, SOCK_STREAM, 0)));
    if (connect(fds.back(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("connect");
  }
  {
    Worker worker(fds);
    size_t nbytes = 0;
    int repeats = 0;
    while (std::scanf(" {\"nbytes\": %zu, \"repeats\": %d}", &nbytes, &repeats) == 2) {
      for (int i = 0; i < repeats; ++i) std::printf("%s%.9f", i == 0 ? "[" : ", ", worker.exchange(nbytes));
      std::printf("]\n");
      std::fflush(stdout);
    }
  }
  for (const int fd : fds) close(fd);
  return 0;
}

}  // namespace

int main(int count, char** words) {
  const std::vector<std::string> rest(words + std::min(count, 2), words + count);
  const std::string role = count > 1 ? words[1] : "";
  if (role == "server" && rest.size() == 2) return run_server(rest[0], std::atoi(rest[1].c_str()));
  if (role == "worker" && !rest.empty()) return run_worker(rest);
  std::fprintf(stderr, "usage: raw server ADDRESS WORKERS | raw worker ADDRESS:PORT...\n");
  return 2;
}
