// Messages to and from one peer through UCX's active messages: in the order in which they were sent, large
// ones without a copy. What a peer may have on its way is its user's business (see link_ucx.cc).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "egress.h"
#include "ucx_api.h"

namespace byteps {

// An open library. Shared by all links of a process.
struct UcxContext {
  UcxApi api;
  ucp_context_h handle = nullptr;
  bool polling = false;
  bool within_host = false;      // through shared memory only, where UCX cannot tell that a peer has died
  bool through_sockets = false;  // to other hosts by TCP only, where no device reads from memory
  ~UcxContext() {
    if (handle != nullptr) api.ucp_cleanup(handle);
  }
};

// Memory that is registered with the devices.
class UcxBuffer {
 public:
  UcxBuffer(std::shared_ptr<UcxContext> context, size_t bytes);  // throws UcxError
  ~UcxBuffer();
  UcxBuffer(const UcxBuffer&) = delete;
  UcxBuffer& operator=(const UcxBuffer&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  ucp_mem_h handle() const { return handle_; }

 private:
  std::shared_ptr<UcxContext> context_;
  ucp_mem_h handle_ = nullptr;
  std::byte* data_ = nullptr;
  const size_t bytes_;
};

class UcxMessages {
 public:
  static constexpr size_t kMaxHeadBytes = 128;      // that go along with larger data
  static constexpr size_t kMaxDataBytes = 4 << 20;  // of one message

  // A message of the peer: its head, then its data.
  struct Arrival {
    enum class State { waiting, coming, here };  // waiting: its data is still at the sender

    std::vector<std::byte> head;
    const std::byte* data = nullptr;
    size_t length = 0;  // of the data
    State state = State::here;
    size_t taken = 0;                   // for the user, who counts here
    std::vector<std::byte> copy;        // where the data is, if not in one of the next two
    void* descriptor = nullptr;         // UCX's
    std::unique_ptr<UcxBuffer> buffer;  // ours
    UcxMessages* owner = nullptr;

    size_t size() const { return head.size() + length; }
  };

  explicit UcxMessages(std::shared_ptr<UcxContext> context);  // throws UcxError
  ~UcxMessages();  // nothing uses the senders' and receivers' memory any more
  UcxMessages(const UcxMessages&) = delete;
  UcxMessages& operator=(const UcxMessages&) = delete;

  std::string address() const;
  void connect(const std::string& address);  // throws UcxError

  // Sends head (at most kMaxHeadBytes) and data. Data of others must stay as it is until `unfinished()` says
  // that it is done with; `own` is kept instead.
  void send(std::span<const std::byte> head, std::span<const std::byte> data);
  void send_own(std::vector<std::byte> own);
  void send_progress();  // tells the peer no more than `consumed`

  Arrival* front();                             // the next message in order, if anything of it is here
  void fetch(Arrival& arrival, std::byte* to);  // where its data is to go
  void fetch_to_buffer(Arrival& arrival);
  void fetch_ahead(size_t messages);              // the next ones, to buffers
  void fetch_behind(std::byte* to, size_t room);  // those behind the front one that are mere data, one by one
  void pop_front();

  bool progress();  // does what there is to do; false: there was nothing
  // So on while data is coming and more of it is there within so long.
  void progress_for(std::chrono::microseconds patience);
  // So that `fd` becomes readable when there is something to do again. False: UCX waits for what has no
  // event, such as room in the peer's queue in shared memory.
  bool arm();
  int fd() const { return fd_; }  // -1 where nobody sleeps
  bool wait_until(const std::function<bool()>& done, int also_fd, Clock::time_point by);
  bool flush(Clock::time_point by);  // until all that was sent has left this process

  uint64_t sent() const { return sent_; }            // bytes
  size_t unfinished() const { return unfinished_; }  // bytes from the first message on that is not done with
  const std::string& failure() const { return failure_; }  // empty: none

  uint64_t consumed = 0;        // bytes that the user has taken; told to the peer along with every message
  uint64_t consumed_told = 0;   // as the peer knows it, once all that was sent has come
  uint64_t consumed_there = 0;  // bytes that the peer's user has taken, as far as this end has heard

 private:
  struct Head {
    uint64_t sequence = 0;
    uint64_t consumed = 0;
  };

  struct Outgoing {
    std::array<std::byte, sizeof(Head) + kMaxHeadBytes> head;
    size_t bytes = 0;
    std::vector<std::byte> own;
    bool done = false;
    UcxMessages* owner = nullptr;
  };

  static ucs_status_t on_message(void* self, const void* header, size_t header_bytes, void* data,
                                 size_t length, const ucp_am_recv_param_t* param);
  static void on_sent(void* request, ucs_status_t status, void* message);
  static void on_fetched(void* request, ucs_status_t status, size_t length, void* arrival);
  static void on_error(void* self, ucp_ep_h endpoint, ucs_status_t status);

  ucs_status_t accept(std::span<const std::byte> header, void* data, size_t length, uint64_t flags);
  void post(uint64_t sequence, std::span<const std::byte> head, std::span<const std::byte> data,
            std::vector<std::byte> own, uint32_t flags);
  void finish_sent();
  void fail(const std::string& reason);
  void fail(const char* what, ucs_status_t status);
  void start_fetch(Arrival& arrival, std::byte* to, ucp_mem_h memory);
  void close_endpoint();
  bool settled() const;  // no operation is under way

  const std::shared_ptr<UcxContext> context_;
  const UcxApi& api_;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  int fd_ = -1;
  std::string failure_;
  std::deque<Outgoing> outgoing_;
  size_t unfinished_ = 0;
  uint64_t sent_ = 0;
  uint64_t next_out_ = 0;
  std::map<uint64_t, Arrival> arrived_;  // by number; what was sent later may come earlier
  uint64_t next_in_ = 0;
  size_t fetching_ = 0;  // messages whose data is coming
  std::vector<std::unique_ptr<UcxBuffer>> free_buffers_;
};

}  // namespace byteps
