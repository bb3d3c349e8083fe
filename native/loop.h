// The event loop of one I/O thread: epoll over links, plus tasks posted from other threads. It sleeps until
// something happens; there is no polling.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "link.h"

namespace byteps {

class Loop {
 public:
  // What happens to a watched link. Both are called on the loop's thread.
  class Watcher {
   public:
    virtual ~Watcher() = default;
    virtual void on_readable() = 0;
    virtual void on_writable() = 0;
  };

  Loop();
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Any thread. Tasks run on the loop's thread in the order posted. One that needs more than there is `room`
  // for (see run_once) waits for the loop's next turn: waking a thread costs more than most tasks.
  void post(std::function<void()> task, uint64_t need = 0);

  // In a forked child: what was posted neither runs nor ends here, for it may hold the parent's links.
  void abandon() { [[maybe_unused]] auto* leaked = new std::vector(std::move(posted_)); }

  // The loop's thread only.
  void watch(Link& link, Watcher& watcher);
  void unwatch(Link& link);
  void watch_writes(Link& link, Watcher& watcher, bool on);
  // One wait, and what it was for. `room`: what tasks may need that are to end the wait.
  void run_once(std::chrono::microseconds longest, uint64_t room = UINT64_MAX);

 private:
  bool falls_asleep(uint64_t room);
  std::vector<std::function<void()>> wake_up();

  int epoll_fd_;
  int wake_fd_;
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;  // guarded by mutex_
  bool asleep_ = false;                        // guarded by mutex_: waits, and was not woken
  uint64_t room_ = 0;                          // guarded by mutex_
};

}  // namespace byteps
