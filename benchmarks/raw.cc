// The limit: plain blocking sockets that move the bytes of a push_pull and do nothing else.
//
//   raw server ADDRESS WORKERS      prints its port; serves WORKERS connections until they are closed
//   raw worker ADDRESS:PORT...      reads lines {"nbytes": N, "repeats": R}; answers each with R times in seconds
//
// In one exchange a worker sends N bytes in equal shares to the servers while each server sends it as many back. Both
// directions of each connection have a thread of their own. Workers walk through memory of N bytes, as whoever
// has a tensor to send must; servers use one block over and over.
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

// Sends (or receives) `nbytes`, a block at a time, through memory that advances or through the same block.
bool move(ssize_t (*call)(int, char*, size_t), int fd, char* memory, size_t nbytes, bool advance) {
  for (size_t done = 0; done < nbytes;) {
    const ssize_t n = call(fd, memory + (advance ? done : 0), std::min(kBlockBytes, nbytes - done));
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

ssize_t put(int fd, char* memory, size_t nbytes) { return send(fd, memory, nbytes, MSG_NOSIGNAL); }
ssize_t take(int fd, char* memory, size_t nbytes) { return recv(fd, memory, nbytes, MSG_WAITALL); }

// One connection of a server. Its two threads learn from the head of each exchange how long it is.
void serve(int fd) {
  std::vector<char> incoming(kBlockBytes), outgoing(kBlockBytes);
  uint64_t nbytes = 0;
  bool open = true;
  std::barrier begin(2), end(2);
  std::thread sender([&] {
    for (;;) {
      begin.arrive_and_wait();
      if (!open) return;
      move(put, fd, outgoing.data(), nbytes, false);
      end.arrive_and_wait();
    }
  });
  for (;;) {
    open = move(take, fd, reinterpret_cast<char*>(&nbytes), sizeof nbytes, true);
    begin.arrive_and_wait();
    if (!open) break;
    move(take, fd, incoming.data(), nbytes, false);
    end.arrive_and_wait();
  }
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
    if (memory_.size() != nbytes) memory_.assign(nbytes, 1);
    const auto began = std::chrono::steady_clock::now();
    begin_.arrive_and_wait();
    end_.arrive_and_wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }

 private:
  ptrdiff_t participants() const { return 1 + 2 * static_cast<ptrdiff_t>(fds_.size()); }
  void loop(size_t index, bool sends) {
    for (;;) {
      begin_.arrive_and_wait();
      if (!open_) return;
      const size_t first = memory_.size() * index / fds_.size();
      const size_t last = memory_.size() * (index + 1) / fds_.size();
      uint64_t nbytes = last - first;
      char* head = reinterpret_cast<char*>(&nbytes);
      const bool moved = sends ? move(put, fds_[index], head, sizeof nbytes, true) &&
                                     move(put, fds_[index], memory_.data() + first, nbytes, true)
                               : move(take, fds_[index], memory_.data() + first, nbytes, true);
      if (!moved) fail("connection");
      end_.arrive_and_wait();
    }
  }

  const std::vector<int> fds_;
  std::vector<char> memory_;
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
