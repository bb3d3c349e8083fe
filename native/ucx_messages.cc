#include "ucx_messages.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "wire.h"

namespace byteps {
namespace {

constexpr unsigned kMessageId = 0;
constexpr uint64_t kNoSequence = UINT64_MAX;  // of what carries no data
constexpr size_t kCopiedBytes = 4096;         // less than this does not keep a receive buffer of UCX occupied
constexpr size_t kBufferBytes = kMaxPayloadBytes;  // of one that is used again
constexpr int kTries = 32;                         // to be able to sleep
// Data of up to this size goes through sockets at once. Where the receiver asks for it first, his question
// stands in line behind what he sends himself, and costs more CPU time than the copies that it saves.
constexpr size_t kUnaskedBytes = 128 * 1024;
constexpr std::chrono::milliseconds kCloseLimit{100};

ucp_request_param_t request(uint32_t fields, void* user_data) {
  ucp_request_param_t param{};
  param.op_attr_mask =
      fields | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.user_data = user_data;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  return param;
}

}  // namespace

UcxBuffer::UcxBuffer(std::shared_ptr<UcxContext> context, size_t bytes)
    : context_(std::move(context)), bytes_(bytes) {
  const UcxApi& api = context_->api;
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
  params.length = bytes;
  params.flags = UCP_MEM_MAP_ALLOCATE;
  api.check(api.ucp_mem_map(context_->handle, &params, &handle_), "memory cannot be registered");
  ucp_mem_attr_t attributes{};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  api.check(api.ucp_mem_query(handle_, &attributes), "memory cannot be registered");
  data_ = static_cast<std::byte*>(attributes.address);
}

UcxBuffer::~UcxBuffer() { context_->api.ucp_mem_unmap(context_->handle, handle_); }

UcxMessages::UcxMessages(std::shared_ptr<UcxContext> context)
    : context_(std::move(context)), api_(context_->api) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // one thread makes the link, another one uses it
  api_.check(api_.ucp_worker_create(context_->handle, &params, &worker_), "no UCX worker can be made");
  ucp_am_handler_param_t handler{};
  handler.field_mask =
      UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.cb = on_message;
  handler.arg = this;
  ucs_status_t status = api_.ucp_worker_set_am_recv_handler(worker_, &handler);
  if (status == UCS_OK && !context_->polling) status = api_.ucp_worker_get_efd(worker_, &fd_);
  if (status == UCS_OK) return;
  api_.ucp_worker_destroy(worker_);
  api_.check(status, "no events can be had of a UCX worker");
}

UcxMessages::~UcxMessages() {
  close_endpoint();
  for (auto& [number, arrival] : arrived_) {
    if (arrival.descriptor != nullptr) api_.ucp_am_data_release(worker_, arrival.descriptor);
  }
  arrived_.clear();
  free_buffers_.clear();
  api_.ucp_worker_destroy(worker_);
}

void UcxMessages::close_endpoint() {
  if (endpoint_ == nullptr || context_->within_host) return;  // where it would have to wait for the peer
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* closing = api_.ucp_ep_close_nbx(endpoint_, &param);
  endpoint_ = nullptr;
  const bool pending = UCS_PTR_IS_PTR(closing);
  const auto is_done = [&] {
    return settled() && (!pending || api_.ucp_request_check_status(closing) != UCS_INPROGRESS);
  };
  wait_until(is_done, -1, Clock::now() + kCloseLimit);
  if (pending) api_.ucp_request_free(closing);
}

bool UcxMessages::settled() const {
  return outgoing_.empty() && std::none_of(arrived_.begin(), arrived_.end(), [](const auto& entry) {
           return entry.second.state == Arrival::State::coming;
         });
}

std::string UcxMessages::address() const {
  ucp_address_t* bytes = nullptr;
  size_t length = 0;
  api_.check(api_.ucp_worker_get_address(worker_, &bytes, &length), "no address of a UCX worker");
  std::string result(reinterpret_cast<const char*>(bytes), length);
  api_.ucp_worker_release_address(worker_, bytes);
  return result;
}

void UcxMessages::connect(const std::string& address) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = context_->within_host ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = on_error;
  params.err_handler.arg = this;
  api_.check(api_.ucp_ep_create(worker_, &params, &endpoint_), "no way to the peer");
}

void UcxMessages::send(std::span<const std::byte> head, std::span<const std::byte> data) {
  const bool at_once = context_->through_sockets && data.size() <= kUnaskedBytes;
  post(next_out_++, head, data, {}, at_once ? UCP_AM_SEND_FLAG_EAGER : 0);
}

void UcxMessages::send_own(std::vector<std::byte> own) {
  const std::span<const std::byte> data(own);
  if (data.size() <= kMaxHeadBytes) {
    post(next_out_++, data, {}, {}, UCP_AM_SEND_FLAG_EAGER);
  } else {
    post(next_out_++, {}, data, std::move(own), UCP_AM_SEND_FLAG_EAGER);
  }
}

void UcxMessages::send_progress() { post(kNoSequence, {}, {}, {}, UCP_AM_SEND_FLAG_EAGER); }

void UcxMessages::post(uint64_t sequence, std::span<const std::byte> head, std::span<const std::byte> data,
                       std::vector<std::byte> own, uint32_t flags) {
  if (!failure_.empty()) return;
  Outgoing& message = outgoing_.emplace_back();
  message.owner = this;
  message.bytes = head.size() + data.size();
  message.own = std::move(own);
  unfinished_ += message.bytes;
  sent_ += message.bytes;
  const Head fixed{sequence, consumed};
  consumed_told = consumed;
  std::memcpy(message.head.data(), &fixed, sizeof fixed);
  std::copy(head.begin(), head.end(), message.head.begin() + sizeof fixed);
  auto param = request(UCP_OP_ATTR_FIELD_FLAGS, &message);
  param.flags = flags;
  param.cb.send = on_sent;
  const ucs_status_ptr_t status =
      api_.ucp_am_send_nbx(endpoint_, kMessageId, message.head.data(), sizeof fixed + head.size(),
                           data.data(), data.size(), &param);
  if (UCS_PTR_IS_PTR(status)) return;  // on_sent() will be called
  message.done = true;
  if (UCS_PTR_IS_ERR(status)) fail("sending", UCS_PTR_STATUS(status));
  finish_sent();
}

void UcxMessages::on_sent(void* request, ucs_status_t status, void* user_data) {
  auto& message = *static_cast<Outgoing*>(user_data);
  UcxMessages& self = *message.owner;
  message.done = true;
  self.api_.ucp_request_free(request);
  if (status != UCS_OK) self.fail("sending", status);
  self.finish_sent();
}

void UcxMessages::finish_sent() {
  while (!outgoing_.empty() && outgoing_.front().done) {
    unfinished_ -= outgoing_.front().bytes;
    outgoing_.pop_front();
  }
}

ucs_status_t UcxMessages::on_message(void* self, const void* header, size_t header_bytes, void* data,
                                     size_t length, const ucp_am_recv_param_t* param) {
  const std::span head(static_cast<const std::byte*>(header), header_bytes);
  return static_cast<UcxMessages*>(self)->accept(head, data, length, param->recv_attr);
}

ucs_status_t UcxMessages::accept(std::span<const std::byte> header, void* data, size_t length,
                                 uint64_t flags) {
  Head fixed;
  if (header.size() < sizeof fixed || header.size() > sizeof fixed + kMaxHeadBytes ||
      length > kMaxDataBytes) {
    fail("the peer sent what is no message of byteps");
    return UCS_OK;
  }
  std::memcpy(&fixed, header.data(), sizeof fixed);
  if (fixed.consumed > sent_) {
    fail("the peer has taken more than it was sent");
    return UCS_OK;
  }
  consumed_there = std::max(consumed_there, fixed.consumed);
  if (fixed.sequence == kNoSequence) return UCS_OK;
  const auto [at, is_new] = arrived_.try_emplace(fixed.sequence);
  if (!is_new || fixed.sequence < next_in_) {
    fail("the peer sent a message twice");
    return UCS_OK;
  }
  Arrival& arrival = at->second;
  arrival.owner = this;
  arrival.head.assign(header.begin() + sizeof fixed, header.end());
  arrival.length = length;
  if ((flags & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    arrival.state = Arrival::State::waiting;
    arrival.descriptor = data;
    return UCS_INPROGRESS;
  }
  const auto* bytes = static_cast<const std::byte*>(data);
  if (length >= kCopiedBytes && (flags & UCP_AM_RECV_ATTR_FLAG_DATA) != 0) {
    arrival.data = bytes;
    arrival.descriptor = data;
    return UCS_INPROGRESS;
  }
  arrival.copy.assign(bytes, bytes + length);
  arrival.data = arrival.copy.data();
  return UCS_OK;
}

UcxMessages::Arrival* UcxMessages::front() {
  const auto at = arrived_.find(next_in_);
  return at == arrived_.end() ? nullptr : &at->second;
}

void UcxMessages::pop_front() {
  Arrival& arrival = arrived_.at(next_in_);
  if (arrival.descriptor != nullptr) api_.ucp_am_data_release(worker_, arrival.descriptor);
  if (arrival.buffer && arrival.buffer->bytes() == kBufferBytes)
    free_buffers_.push_back(std::move(arrival.buffer));
  arrived_.erase(next_in_++);
}

void UcxMessages::fetch(Arrival& arrival, std::byte* to) { start_fetch(arrival, to, nullptr); }

void UcxMessages::fetch_to_buffer(Arrival& arrival) {
  try {
    if (free_buffers_.empty() || arrival.length > kBufferBytes) {
      arrival.buffer = std::make_unique<UcxBuffer>(context_, std::max(arrival.length, kBufferBytes));
    } else {
      arrival.buffer = std::move(free_buffers_.back());
      free_buffers_.pop_back();
    }
  } catch (const UcxError& error) {
    fail(error.what());
    return;
  }
  start_fetch(arrival, arrival.buffer->data(), arrival.buffer->handle());
}

void UcxMessages::fetch_ahead(size_t messages) {
  for (uint64_t number = next_in_; number < next_in_ + messages; ++number) {
    const auto at = arrived_.find(number);
    if (at == arrived_.end()) return;
    if (at->second.state == Arrival::State::waiting) fetch_to_buffer(at->second);
  }
}

void UcxMessages::fetch_behind(std::byte* to, size_t room) {
  for (uint64_t number = next_in_ + 1;; ++number) {
    const auto at = arrived_.find(number);
    if (at == arrived_.end()) return;
    Arrival& arrival = at->second;
    if (arrival.state != Arrival::State::waiting || !arrival.head.empty() || arrival.length > room) return;
    fetch(arrival, to);
    to += arrival.length;
    room -= arrival.length;
  }
}

void UcxMessages::start_fetch(Arrival& arrival, std::byte* to, ucp_mem_h memory) {
  auto param = request(memory != nullptr ? UCP_OP_ATTR_FIELD_MEMH : 0, &arrival);
  param.memh = memory;
  param.cb.recv_am = on_fetched;
  arrival.data = to;
  arrival.state = Arrival::State::coming;
  const ucs_status_ptr_t status = api_.ucp_am_recv_data_nbx(
      worker_, std::exchange(arrival.descriptor, nullptr), to, arrival.length, &param);
  if (UCS_PTR_IS_PTR(status)) {  // on_fetched() will be called
    ++fetching_;
    return;
  }
  arrival.state = Arrival::State::here;
  if (UCS_PTR_IS_ERR(status)) fail("receiving", UCS_PTR_STATUS(status));
}

void UcxMessages::on_fetched(void* request, ucs_status_t status, size_t, void* user_data) {
  auto& arrival = *static_cast<Arrival*>(user_data);
  UcxMessages& self = *arrival.owner;
  arrival.state = Arrival::State::here;
  --self.fetching_;
  self.api_.ucp_request_free(request);
  if (status != UCS_OK) self.fail("receiving", status);
}

void UcxMessages::on_error(void* self, ucp_ep_h, ucs_status_t status) {
  static_cast<UcxMessages*>(self)->fail("the connection", status);
}

void UcxMessages::fail(const std::string& reason) {
  if (failure_.empty()) failure_ = reason;
}

void UcxMessages::fail(const char* what, ucs_status_t status) {
  fail(std::string(what) + " failed: " + api_.ucs_status_string(status));
}

bool UcxMessages::progress() {
  bool any = false;
  while (api_.ucp_worker_progress(worker_) != 0) any = true;
  return any;
}

void UcxMessages::progress_for(std::chrono::microseconds patience) {
  auto until = Clock::now() + patience;
  while (fetching_ > 0 && Clock::now() < until) {
    if (progress()) until = Clock::now() + patience;
  }
}

bool UcxMessages::arm() {
  if (fd_ < 0) return true;
  for (int tries = 0; api_.ucp_worker_arm(worker_) == UCS_ERR_BUSY;) {
    if (!progress() && ++tries == kTries) return false;
  }
  return true;
}

bool UcxMessages::wait_until(const std::function<bool()>& done, int also_fd, Clock::time_point by) {
  while (true) {
    progress();
    if (done()) return true;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(by - Clock::now()).count();
    if (left <= 0) return false;
    const bool may_sleep = fd_ >= 0 && arm();
    if (done()) return true;
    pollfd entries[2] = {{fd_, POLLIN, 0}, {also_fd, POLLIN, 0}};
    poll(entries, 2, may_sleep ? static_cast<int>(left) : 0);
  }
}

bool UcxMessages::flush(Clock::time_point by) {
  if (!failure_.empty()) return false;
  ucp_request_param_t param{};
  void* flushing = api_.ucp_ep_flush_nbx(endpoint_, &param);
  if (UCS_PTR_IS_ERR(flushing)) return false;
  const auto status = [&] { return flushing == nullptr ? UCS_OK : api_.ucp_request_check_status(flushing); };
  const auto is_done = [&] { return outgoing_.empty() && status() != UCS_INPROGRESS; };
  const bool flushed = wait_until(is_done, -1, by) && status() == UCS_OK;
  if (flushing != nullptr) api_.ucp_request_free(flushing);
  return flushed && failure_.empty();
}

}  // namespace byteps
